"""Python imports this by itself in every process that has this folder on its path.

It makes a whole boot quick and lets tests strike anywhere in it: the worker's stages need no torch
and pass, and before a stage that PLAY_STAGE names the code in PLAY_CODE is run by the process of
that stage. `import` is the time of the worker's imports, `settings` the supervisor's first stage.
The rest is the product's own: supervisor, pipes, preflight, the worker's main program, the job.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

STAGE = os.environ.get("PLAY_STAGE", "")
ROLE = next((name for name in ("app.boot", "app.worker") if name in sys.orig_argv), "")


def strike(stage: str) -> None:
    """Run the test's code if this is its stage."""
    if stage == STAGE:
        exec(os.environ["PLAY_CODE"], {"os": os, "sys": sys})  # noqa: S102 - the test's own


def _strike_before_stages() -> None:
    from app import pipeline

    run_part = vars(pipeline)["_run_part"]

    def struck(stage: str, *rest: Any) -> Any:
        strike(stage)
        return run_part(stage, *rest)

    vars(pipeline)["_run_part"] = struck


def _play_the_work() -> None:
    """The worker's imports and stages, without torch."""
    from app.checks import Check
    from app.engine import stack
    from app.outcome import Fault, Finding, passed
    from app.pipeline import Part, Stage
    from app.plan import Plan
    from app.stages import WORKER_STAGES

    def judge(_facts: object, _plan: Plan) -> Finding:
        return passed("played")

    class Work:
        """As `app.work.Work` for who drives it."""

        def __init__(self, plan: Plan) -> None:
            self.plan, self.model, self.tokenizer = plan, "a model", "a tokenizer"

        def stages(self) -> tuple[Stage, ...]:
            return tuple(
                Stage(
                    name,
                    (Part(object, (Check(f"{name}.played", Fault.INTERNAL, "a test", judge),)),),
                )
                for name in WORKER_STAGES
            )

    vars(stack)["import_stack"] = lambda: strike("import")
    played = types.ModuleType("app.work")
    vars(played)["Work"] = Work
    sys.modules["app.work"] = played


if ROLE:
    _strike_before_stages()
if ROLE == "app.worker":
    _play_the_work()
if ROLE == "app.boot" and STAGE == "settings":
    from app import settings_stage

    load = vars(settings_stage)["load_settings"]

    def _struck(*arguments: Any, **named: Any) -> Any:
        strike("settings")
        return load(*arguments, **named)

    vars(settings_stage)["load_settings"] = _struck
