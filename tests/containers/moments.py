"""Moments of a boot at which something is done to it, and what its end must look like."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from tests.containers import jobs
from tests.containers.engine import HUB_SETTINGS
from tests.containers.harness import ROOT, Container, End


@dataclass(frozen=True)
class Moment:
    """How to come to it, and the stages that may be the current one when something is done.

    What is short is over before the engine has carried out an order.
    """

    arrive: Callable[[Container], None]
    stages: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


def _in_stage(name: str) -> Callable[[Container], None]:
    return lambda container: container.until_stage(name)


def _in_job(container: Container) -> None:
    container.until_file(jobs.READY)


MOMENTS = {
    "preflight": Moment(_in_stage("cache"), ("cache",), HUB_SETTINGS),
    "importing": Moment(_in_stage("stack"), ("stack",)),
    "load": Moment(_in_stage("load"), ("load", "precision", "adapter", "numerics")),
    "numerics": Moment(_in_stage("numerics"), ("numerics",), {"BOOT_STEPS": "1000"}),
    "job": Moment(_in_job, ("job",), {"BOOT_JOB": "tests.containers.jobs:waits"}),
}


def is_valid(report: Mapping[str, Any]) -> None:
    """The report is whole, and as its schema says."""
    schema = json.loads((ROOT / "docs" / "boot-report.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    # The schema itself is 1,500 lines, and would be part of what an error says.
    assert not [f"{error.json_path}: {error.message}" for error in validator.iter_errors(report)]


def agrees(end: End, code: int, state: str = "complete") -> None:
    """Container, report and verdict line tell the same, and nothing of the boot is left."""
    assert end.code == code, end.err
    is_valid(end.report)
    assert end.report["state"] == state
    assert end.report["exit"]["process_code"] == code
    assert end.line["exit"] == code
    assert end.left == []
