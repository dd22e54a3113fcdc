"""Who is booting where: the report's `identity`, run id and attempt. Imports only the report."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from typing import Any

from app.report import Identity
from app.version import __version__

# Variables of schedulers worth keeping in the report.
_SCHEDULER_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "SLURMD_NODENAME",
    "POD_NAME",
    "POD_NAMESPACE",
    "POD_UID",
    "NODE_NAME",
    "JOB_COMPLETION_INDEX",
    "TORCHELASTIC_RUN_ID",
)
# Anything else is no id and may be a pasted secret; the settings refuse it, the report omits it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RUN_ID_VARIABLES = ("BOOT_RUN_ID", "SLURM_JOB_ID", "POD_UID", "TORCHELASTIC_RUN_ID")


def identity_of(environ: Mapping[str, str]) -> Identity:
    """Facts of this process that no check judges."""
    return Identity(
        bootguard=__version__,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        uid=os.getuid(),
        python=".".join(str(part) for part in sys.version_info[:3]),
        platform=platform.platform(),
        scheduler={name: environ[name][:200] for name in _SCHEDULER_VARIABLES if name in environ},
    )


def run_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """`run_id` and `attempt` (1 is the first) as the scheduler counts them."""
    given = (environ.get(name, "") for name in _RUN_ID_VARIABLES)
    run_id = next((value for value in given if _NAME.fullmatch(value)), None)
    restarts = environ.get("SLURM_RESTART_COUNT", "")
    attempt = 1 + int(restarts) if re.fullmatch(r"[0-9]{1,6}", restarts) else 1
    return {"run_id": run_id, "attempt": attempt}
