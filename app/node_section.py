"""The report's `node`, from what the host stage found."""

from __future__ import annotations

from app.facts.host import FolderFacts, HostFacts
from app.sections_node import Node, NodeFolder


def node_section(facts: HostFacts) -> Node:
    """The machine as this process sees it."""
    machine, account, limits = facts.machine, facts.account, facts.limits
    return Node(
        machine=machine.machine,
        kernel=machine.kernel,
        glibc=machine.glibc or None,
        container=machine.container or None,
        processor=machine.processor or None,
        x86_64_level=machine.x86_64_level,
        seccomp=machine.seccomp,
        no_new_privileges=machine.no_new_privileges,
        umask=None if machine.umask is None else f"{machine.umask:04o}",
        account=account.name,
        gid=account.gid,
        home=account.home,
        n_cpus=limits.n_cpus,
        cpu_quota=limits.cpu_quota,
        tasks_left=limits.tasks_left,
        memory_total_bytes=facts.memory.total_bytes,
        memory_available_bytes=facts.memory.available_bytes,
        memory_limited_by=facts.memory.limited_by or None,
        swap_free_bytes=facts.memory.swap_bytes,
        shared_memory_bytes=facts.shared_memory.total_bytes,
        limits={name: most for name, most in limits.resources if most is not None},
        folders=tuple(_folder(found) for found in (facts.report, *facts.caches)),
    )


def _folder(found: FolderFacts) -> NodeFolder:
    return NodeFolder(
        purpose=found.folder.purpose,
        path=found.folder.path,
        file_system=found.file_system or None,
        on_network=found.on_network,
        free_bytes=found.free_bytes,
        free_inodes=found.free_inodes,
        executable=found.executable,
        locks=None if found.problem else found.lock_errno is None,
    )
