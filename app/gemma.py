"""The origin's interface: `boot_gemma` and its guards, in the caller's own process.

Never exits, never writes a report. Imports torch and Unsloth when it is called, not before; torch
may have been imported already.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from app.config import ALLOWED_HARDWARE, BootConfig, ModelRequest
from app.plan import Plan
from app.profiles import PROFILES


def boot_gemma(config: BootConfig | None = None) -> tuple[Any, Any]:
    """Load the model in the dtype of `config.hardware`, guard it, attach LoRA, guard it again.

    Returns the PEFT model and the tokenizer. Raises BF16SlippageError (v100) or FP16SlippageError
    (h100) before any adapter or optimizer exists, BootError with expected, actual and next step for
    whatever else is not as asked, ValueError for hardware that is not in ALLOWED_HARDWARE. What
    would only warn in a report is a UserWarning. The environment that Unsloth was imported with
    stays pinned; a call that fails without having imported it leaves the environment as it was.
    """
    config = config or BootConfig()
    if config.hardware not in ALLOWED_HARDWARE:
        raise ValueError(
            f"hardware must be one of {', '.join(ALLOWED_HARDWARE)}: {config.hardware!r}"
        )
    plan = plan_of(config)
    from app.engine import double

    why = double.why_double()
    if why is not None:
        return double.boot(plan, why)
    from app import inprocess

    return inprocess.boot(plan)


def plan_of(config: BootConfig) -> Plan:
    """The plan of a call: values as given, nothing read from the environment."""
    asked = {one.name: getattr(config, one.name) for one in fields(ModelRequest)}
    return Plan(
        profile=PROFILES[config.hardware],
        request=ModelRequest(**asked),
        report_dir=Path(),  # no report is written
    )
