"""The origin's interface: `boot_gemma` and its guards, in the caller's own process.

Never exits, never writes a report. Imports torch and Unsloth when it is called, not before; torch
may have been imported already.
"""

from __future__ import annotations

import sys
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
    whatever else is not as asked, ValueError for hardware that is not in ALLOWED_HARDWARE.
    """
    config = config or BootConfig()
    if config.hardware not in ALLOWED_HARDWARE:
        raise ValueError(
            f"hardware must be one of {', '.join(ALLOWED_HARDWARE)}: {config.hardware!r}"
        )
    plan = plan_of(config)
    if unsloth_is_a_double():
        from app.engine import double

        return double.boot(plan)
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


def unsloth_is_a_double() -> bool:
    """Whether tests have put something else in the place of Unsloth or of its loader."""
    module = sys.modules.get("unsloth")
    if module is None:
        return False
    loader = getattr(getattr(module, "FastModel", None), "from_pretrained", None)
    return not str(getattr(loader, "__module__", "")).startswith("unsloth")
