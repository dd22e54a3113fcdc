"""Boots broken on purpose: each case of `tests.broken_cases` through the worker's own stages.

`python -m tests.broken_boots OUT [CASE ...]` runs the cases one after the other in this process
and writes what each ended with as JSON: importing Unsloth takes nine seconds, a boot after that
one or two. `python -m tests.broken_boots table` prints docs/broken.md.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from unittest import mock

from app import pipeline
from app.config import ModelRequest
from app.exits import exit_code, worst
from app.facts.names import dtype_name
from app.outcome import Status
from app.pipeline import Published, Sink, Stage
from app.plan import Plan, Resolved
from app.report import CheckRecord
from tests import broken_files
from tests.broken_cases import CASES, GROUPS, Case
from tests.tiny_models import tiny_model

if TYPE_CHECKING:
    from app.work import Work


_HEAD = """\
# Boots broken on purpose

Each row is a real boot of the worker's stages, from the imported stack to the trained model, on the
tiny Gemma 3n or Llama, with one thing broken; made by `python -m tests.broken_boots table`, and
proven by `tests/test_broken_boots_stack.py`. All checks that fail or warn are named. In all of them
the first parameter has a dtype that its profile allows: a look at that one alone would have let
them all train. V100 and H100 are their profiles on a CPU; what a device does is played at the
place where a library hands work to it. Healthy boots of each profile pass without a warning.
"""
_SHOWN = {
    "weights": "the fingerprint of the weights",
    "logits": "the fingerprint of the logits",
}
_SAYS_SOMETHING = (Status.WARN, Status.FAIL, Status.ERROR)
_FIELDS = ("status", "reason", "expected", "actual", "next_step", "source")


@dataclass
class Recorder:
    """A sink that keeps what it is told."""

    records: list[CheckRecord] = field(default_factory=list)
    sections: dict[str, Published] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    def stage_started(self, name: str) -> None:
        """Nothing to keep."""

    def check(self, record: CheckRecord) -> None:
        """A check ended."""
        self.records.append(record)

    def section(self, name: str, section: Published) -> None:
        """A part of the report is known."""
        self.sections[name] = section

    def stage_finished(self, name: str, status: Status, finding: str) -> None:
        """Nothing to keep."""

    def trouble(self, name: str, error: BaseException) -> None:
        """A step threw what nobody foresaw."""
        self.troubles.append(f"{name}: {type(error).__name__}: {error}")


class Striker:
    """Hands everything on to a sink, and breaks the model once the case's stage has ended."""

    def __init__(self, sink: Sink, case: Case, work: Work) -> None:
        self._sink, self._case, self._work = sink, case, work
        self.stage_started, self.check = sink.stage_started, sink.check
        self.section, self.trouble = sink.section, sink.trouble

    def stage_finished(self, name: str, status: Status, finding: str) -> None:
        """Break it where this stage is the one."""
        self._sink.stage_finished(name, status, finding)
        if name == self._case.after:
            self._case.breaks(self._work.model)


@contextmanager
def replaced(case: Case) -> Iterator[None]:
    """Functions of the libraries, and of the engine, replaced for the time of a boot."""
    with ExitStack() as stack:
        for place, make in case.everything_replaced.items():
            module, _, path = place.partition(":")
            owner, _, name = path.rpartition(".")
            holder = resolve_name(f"{module}:{owner}") if owner else import_module(module)
            stack.enter_context(mock.patch.object(holder, name, make(getattr(holder, name))))
        yield


def strike(name: str) -> None:
    """Let the next boot of this process be a case's: for a worker, as `sitecustomize` is read."""
    usual, case = pipeline.run_stages, CASES[name]

    def run(stages: Iterable[Stage], work: Any, sink: Sink, *, stop_after: str | None) -> bool:
        with replaced(case):
            return usual(stages, work, Striker(sink, case, work), stop_after=stop_after)

    vars(pipeline)["run_stages"] = run


def plan_of(case: Case, folder: Path) -> Plan:
    """A boot of this folder on the case's profile."""
    request = ModelRequest(base_model_id=str(folder), max_seq_length=512)
    resolved = Resolved(str(folder), None, folder, "a test's model")
    return Plan(case.profile, request, Path("reports"), resolved=resolved)


def boot(case: Case, scratch: Path) -> dict[str, Any]:
    """One boot to its end, as JSON: the records, the exit code, the first parameter's dtype."""
    from app.engine import memory_use
    from app.work import Work

    folder = tiny_model(case.kind)
    if case.files is not None:
        folder = broken_files.copy(folder, scratch / "model")
        case.files(folder)
    work, sink = Work(plan_of(case, folder)), Recorder()
    # On a CPU the peak is the process's, and this one has booted before.
    with mock.patch.object(memory_use, "peak", return_value=None), replaced(case):
        pipeline.run_stages(work.stages(), work, Striker(sink, case, work), stop_after=None)
    faults = [record.fault for record in sink.records if record.fault is not None]
    numbers: Any = sink.sections.get("numerics")
    fingerprint = getattr(numbers, "fingerprint", None)
    return {
        "code": int(worst(exit_code(fault) for fault in faults)),
        "found": [_told(each) for each in sink.records if each.status in _SAYS_SOMETHING],
        "n_passed": sum(each.status is Status.PASS for each in sink.records),
        "first": dtype_name(next(work.model.parameters()).dtype) if work.model else "",
        "weights": getattr(fingerprint, "weights", ""),
        "logits": getattr(fingerprint, "logits", ""),
        "troubles": sink.troubles,
    }


def _told(record: CheckRecord) -> dict[str, str]:
    """A record that is no pass, its check as the table names it."""
    own = record.id.startswith(f"{record.stage}.")
    told = {"check": record.id if own else f"{record.id} in {record.stage}"}
    return told | {name: str(getattr(record, name) or "") for name in _FIELDS}


def run(names: Iterable[str], out: Path) -> None:
    """All of them; each loads its model anew."""
    from app.engine import environment, stack
    from app.profiles import CPU

    environment.pin(CPU)
    stack.import_stack()
    import torch

    torch.set_num_threads(1)  # two that spin on busy cores take ten times as long
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            found[name] = boot(CASES[name], Path(scratch))
        gc.unfreeze()  # a boot freezes its model, which here is to go
        gc.collect()
        out.write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # taking the interpreter down takes 1.5 s


def table() -> str:
    """docs/broken.md."""
    lines = [_HEAD]
    for title, group in GROUPS.items():
        named = "shown by" if any(case.shows for case in group.values()) else "named by"
        lines += [f"## {title}", "", f"| broken | {named} | exit |", "|---|---|---|"]
        lines += [_row(case) for case in group.values()]
        lines += [""]
    return "\n".join(lines)


def _row(case: Case) -> str:
    named = (f"`{each}`".replace(" in ", "` in the stage `") for each in case.checks)
    checks = ", ".join(named) or _SHOWN[case.shows]
    return f"| {case.what} | {checks} | {int(case.code)} {case.code.name} |"


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        sys.stdout.write(table())
    else:
        run(sys.argv[2:] or CASES, Path(sys.argv[1]))
