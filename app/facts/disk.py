"""Whose fault a failed system call on a file is. A leaf: imports only `app.outcome`."""

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
# This account may not, on any node that mounts it like this.
_RIGHTS = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))


def fault_of(number: int | None) -> Fault | None:
    """Of a disk, of this account's rights, or None: the number tells nothing of the kind."""
    if number in _DISK:
        return Fault.READ_ERROR
    return Fault.CONFIG if number in _RIGHTS else None
