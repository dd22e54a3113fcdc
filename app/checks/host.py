"""Judges of the host stage: what the node, the container and their surroundings let a boot do.

They stand by family: the report's folder, the process, other folders and room, the job's target,
the node, limits, variables, the way to the hub, the toolchain and the installed packages. The
report's folder comes first: without it nobody learns the rest.
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
    _process,
    _report_dir,
    _room,
    _toolchain,
    _wheels,
)
from app.facts.host import HostFacts

CHECKS: tuple[Check[HostFacts], ...] = (
    *_report_dir.CHECKS,
    *_process.CHECKS,
    *_folders.CHECKS,
    *_room.CHECKS,
    *_job_target.CHECKS,
    *_node.CHECKS,
    *_limits.CHECKS,
    *_environment.CHECKS,
    *_network.CHECKS,
    *_toolchain.CHECKS,
    *_packages.CHECKS,
    *_wheels.CHECKS,
    *_native.CHECKS,
)
