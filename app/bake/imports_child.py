"""Imports everything that a boot imports, as a rehearsal does: `python -m app.bake.imports_child`.

What the stack stage says of it goes to standard output as JSON, and the name of each package before
its import: one that kills the process is the last.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path

from app.checks.stack import CHECKS
from app.config import ModelRequest
from app.engine.environment import pin
from app.engine.stack import gather, import_stack
from app.errors import BootError
from app.facts.packages import REQUIRED_PACKAGES
from app.plan import Plan
from app.profiles import CPU

DONE = "done"


def main() -> None:
    """Import, judge, tell. A build has no GPU, so Unsloth comes up on the CPU."""
    pin(CPU)
    say("unsloth")
    try:
        import_stack()
    except BootError as error:
        tell([asdict(error.finding)])
        return
    facts = gather()
    plan = Plan(CPU, ModelRequest(), Path())
    tell([asdict(check.judge(facts, plan)) for check in CHECKS])
    for name in REQUIRED_PACKAGES:
        say(name)
        importlib.import_module(name)
    say(DONE)


def say(name: str) -> None:
    """What comes next."""
    print(json.dumps(name), flush=True)  # noqa: T201 - the parent reads it


def tell(findings: list[dict[str, object]]) -> None:
    """What the stage says."""
    print(json.dumps(findings), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
