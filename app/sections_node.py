"""The report's account of the node: what the host stage saw besides what its checks judge."""

from __future__ import annotations

from pydantic import Field

from app.sections import Section


class NodeFolder(Section):
    """A folder that the boot writes to, and the file system below it."""

    purpose: str
    path: str
    file_system: str | None = None
    on_network: bool = False
    free_bytes: int | None = None
    free_inodes: int | None = None
    executable: bool | None = None
    locks: bool | None = None  # whether flock works; None where it was not tried


class Node(Section):
    """The machine and the container as this process sees them; None is what could not be read.

    `x86_64_level` is 3 for a processor of x86-64-v3. `cpu_quota` is in processors. `limits` are the
    soft limits that are set, by their names in `man prlimit`; what is not in it is unlimited.
    """

    machine: str
    kernel: str
    glibc: str | None = None
    container: str | None = None
    processor: str | None = None
    x86_64_level: int | None = None
    seccomp: int | None = None
    no_new_privileges: bool | None = None
    umask: str | None = None
    account: str | None = None
    gid: int | None = None
    home: str | None = None
    n_cpus: int
    cpu_quota: float | None = None
    tasks_left: int | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    memory_limited_by: str | None = None
    swap_free_bytes: int | None = None
    shared_memory_bytes: int | None = None
    limits: dict[str, int] = Field(default_factory=dict)
    folders: tuple[NodeFolder, ...] = ()
