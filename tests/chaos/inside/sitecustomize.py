"""Python imports this by itself in every process that has the folder on its path.

It makes the boot's own code strike at a stage, without a hook in the product: the step that
gathers a stage's facts first runs a fault of `chaos_faults`. Only where CHAOS_FAULT is set.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

STAGE = os.environ.get("CHAOS_STAGE", "")


def strike() -> None:
    """Run the fault, at most once in a boot, whatever number of processes come by."""
    importlib.import_module("chaos_faults").strike()


def _patch_pipeline(module: ModuleType) -> None:
    """Every part of the stage strikes first, inside of the step guard, as a real fault would."""
    run_part: Callable[..., Any] = vars(module)["_run_part"]

    def struck(stage: str, part: Any, *rest: Any) -> Any:
        if stage != STAGE:
            return run_part(stage, part, *rest)

        def gather() -> Any:
            strike()
            return part.gather()

        return run_part(stage, replace(part, gather=gather), *rest)

    vars(module)["_run_part"] = struck


def _patch_settings(module: ModuleType) -> None:
    """The settings stage has no parts: it begins with this call, in the supervisor."""
    load: Callable[..., Any] = vars(module)["load_settings"]

    def struck(*arguments: Any, **named: Any) -> Any:
        strike()
        return load(*arguments, **named)

    vars(module)["load_settings"] = struck


_PATCHES = {"app.pipeline": _patch_pipeline}
if STAGE == "settings":
    _PATCHES = {"app.settings": _patch_settings}


class _Patcher:
    """A finder that lets the others find, and patches what they load."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "unsloth" and STAGE == "import":
            strike()
        patch = _PATCHES.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


if os.environ.get("CHAOS_FAULT"):
    sys.meta_path.insert(0, _Patcher())
