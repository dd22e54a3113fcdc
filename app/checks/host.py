"""Judges of the host stage: what the node, the container and their surroundings let a boot do.

They stand by family: folders and room, the job's target, the node, limits, variables, the way to
the hub, the toolchain and the installed packages. The report's folder comes first: without it
nobody learns the rest.
"""

from __future__ import annotations

from app.checks import (
    Check,
    _environment,
    _folders,
    _job_target,
    _limits,
    _native,
    _network,
    _node,
    _packages,
    _room,
    _toolchain,
    _wheels,
)
from app.facts.host import HostFacts
from app.facts.words import one_line
from app.outcome import Fault, Finding, passed
from app.plan import Plan


def account(facts: HostFacts, _plan: Plan) -> Finding:
    """A uid without an entry is handled; what it can write is judged by folder."""
    found = facts.account
    name = f" ({one_line(found.name)})" if found.name else ", without a passwd entry"
    home = "unset" if found.home is None else one_line(found.home) or "empty"
    return passed(f"uid {found.uid}{name}, gid {found.gid}, HOME {home}")


CHECKS: tuple[Check[HostFacts], ...] = (
    *_folders.CHECKS,
    *_room.CHECKS,
    *_job_target.CHECKS,
    Check(
        "host.account",
        Fault.CONFIG,
        "getuid, the account database and HOME",
        account,
        cause="Never fails: it says who this process is. A uid without a passwd entry is handled; "
        "what it may not write is named by the checks of folders.",
        fix="Nothing to do.",
    ),
    *_node.CHECKS,
    *_limits.CHECKS,
    *_environment.CHECKS,
    *_network.CHECKS,
    *_toolchain.CHECKS,
    *_packages.CHECKS,
    *_wheels.CHECKS,
    *_native.CHECKS,
)
