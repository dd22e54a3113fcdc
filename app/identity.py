"""Who is booting where: the report's `identity`, run id and attempt. Imports only the report."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from typing import Any

from app.report import Identity
from app.version import __version__

# Variables of schedulers worth keeping in the report: which run, which try, which node.
_SCHEDULER_VARIABLES = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "SLURMD_NODENAME",
    "POD_NAME",
    "POD_NAMESPACE",
    "POD_UID",
    "NODE_NAME",
    "JOB_COMPLETION_INDEX",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)
# Anything else is no id and may be a pasted secret; the settings refuse it, the report omits it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_COUNT = re.compile(r"[0-9]{1,6}")
# Both count from 0. Where one is inside the other, Slurm's is the outer.
_RESTART_VARIABLES = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")


def identity_of(environ: Mapping[str, str]) -> Identity:
    """Facts of this process that no check judges."""
    return Identity(
        bootguard=__version__,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        uid=os.getuid(),
        python=".".join(str(part) for part in sys.version_info[:3]),
        platform=_platform(),
        scheduler={name: environ[name][:200] for name in _SCHEDULER_VARIABLES if name in environ},
    )


def _platform() -> str:
    """By the kernel's own words: `platform.platform()` starts a program, which may hang."""
    found = os.uname()
    return f"{found.sysname}-{found.release}-{found.machine}"


def run_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """`run_id` and `attempt` (1 is the first) as asked, else as the scheduler counts them.

    What is no id or no count is passed over: the settings say so where it is one of ours.
    """
    array = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
    given = (
        environ.get("BOOT_RUN_ID", ""),
        # As Slurm itself writes it: each task has a job id of its own that nobody knows.
        "_".join(environ[name] for name in array) if environ.keys() >= set(array) else "",
        environ.get("SLURM_JOB_ID", ""),
        environ.get("POD_UID", ""),
        environ.get("TORCHELASTIC_RUN_ID", ""),
    )
    run_id = next((value for value in given if _NAME.fullmatch(value)), None)
    return {"run_id": run_id, "attempt": _attempt(environ)}


def _attempt(environ: Mapping[str, str]) -> int:
    asked = environ.get("BOOT_ATTEMPT", "")
    if _COUNT.fullmatch(asked) and int(asked) >= 1:
        return int(asked)
    restarts = (environ.get(name, "") for name in _RESTART_VARIABLES)
    return 1 + next((int(count) for count in restarts if _COUNT.fullmatch(count)), 0)
