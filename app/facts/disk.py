"""Kinds of file systems, and whose fault a failed call on a file is. Imports only `app.outcome`."""

from __future__ import annotations

import errno

from app.outcome import Fault

# The disk or mount failed or is full: another node, or somebody who clears up, can mend it.
_DISK = frozenset(
    (
        *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENXIO, errno.EREMOTEIO),
        *(errno.ESTALE, errno.ETIMEDOUT, errno.ENODEV, errno.ENOTCONN),  # of mounts that are gone
    )
)
# Types of file systems whose files lie on another machine.
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs"),
        *("wekafs", "pvfs2", "orangefs", "glusterfs", "ocfs2", "gfs2", "virtiofs", "panfs", "vast"),
        *(
            "fuse.glusterfs",
            "fuse.sshfs",
            "fuse.ceph",
            "fuse.ceph-fuse",
            "fuse.s3fs",
            "fuse.goofys",
        ),
        *("fuse.gcsfuse", "fuse.juicefs", "fuse.rclone", "fuse.blobfuse2", "fuse.mount-s3"),
    )
)
# This account may not, on any node that mounts it like this.
RIGHTS = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


def fault_of(number: int | None) -> Fault | None:
    """Of a disk, of this account's rights, or None: the number tells nothing of the kind."""
    if number in _DISK:
        return Fault.READ_ERROR
    return Fault.CONFIG if number in RIGHTS else None
