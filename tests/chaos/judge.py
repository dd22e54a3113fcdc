"""The rules that every boot keeps, whatever is done to it. Pure: judges what was seen."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from app.stages import STAGES
from tests.chaos.boots import Found
from tests.chaos.cases import Case

_SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "boot-report.schema.json"
_LINE_BYTES = 900
_PEAK_KB = 60 * 1024  # the supervisor stays under 60 MB
_REPORT_BYTES = 2 * 1024 * 1024  # a report is read by people
_ENDED = ("pass", "warn", "skip")


def broken(case: Case, found: Found) -> list[str]:
    """The rules that this boot has broken, in words."""
    if found.trouble:
        return [f"the test's own part failed: {found.trouble}"]
    return [text for rule in _RULES for text in rule(case, found)]


def report_of(case: Case, found: Found) -> dict[str, Any] | None:
    """The report from where it has to be; None where there is none, or no JSON."""
    text = found.report if case.expect.report != "log" else _logged(found.err)
    try:
        report = json.loads(text)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _logged(err: bytes) -> str:
    """The report in the log: the line that is one."""
    lines = err.decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if '"schema_version"' in line), "")


def _ends(case: Case, found: Found) -> Iterator[str]:
    if found.code is None:
        yield f"it did not end: {found.lasted or found.took:.1f} s after the strike"
        return
    if not found.struck and case.at_s is None:  # a moment may come after the end
        yield "the fault did not strike"
    if found.struck and found.lasted > case.within_s:  # else it had ended before its moment
        yield f"ended {found.lasted:.1f} s after the strike, not within {case.within_s:g} s"
    if found.code not in case.expect.codes:
        yield f"exit {found.code}, not {' or '.join(map(str, sorted(case.expect.codes)))}"


def _leaves_no_process(_: Case, found: Found) -> Iterator[str]:
    yield from (f"left behind: {each}" for each in found.left)


def _stays_light(case: Case, found: Found) -> Iterator[str]:
    if found.peak_kb > _PEAK_KB:
        yield f"the supervisor took {found.peak_kb / 1024:.0f} MB"
    if len(found.report) > _REPORT_BYTES:
        yield f"the report has {len(found.report)} bytes"
    if len(found.err) > 16 * _REPORT_BYTES:
        yield f"the log has {len(found.err)} bytes"
    if case.streams == "files" and case.expect.report != "any" and not found.err:
        yield "nothing was logged"


def _says_one_line(case: Case, found: Found) -> Iterator[str]:
    if "stdout" in case.streams or found.code is None:
        return
    if case.expect.report == "left" and found.out:
        yield f"a killed boot printed {found.out[:80]!r}"
    if case.expect.report == "left" or (case.expect.report == "any" and not found.out):
        return
    if found.out.count(b"\n") != 1 or not found.out.endswith(b"\n"):
        yield f"stdout is not one line: {found.out[:200]!r}"
        return
    try:
        line = json.loads(found.out)
    except ValueError:
        yield f"stdout is no JSON: {found.out[:200]!r}"
        return
    if len(found.out) > _LINE_BYTES + 1:
        yield f"the verdict line has {len(found.out)} bytes"
    if line["exit"] != found.code and found.code != -signal.SIGKILL:
        yield f"the verdict line says exit {line['exit']}, the process {found.code}"
    if case.expect.report == "any":
        return
    if (line["report"] is None) != (case.expect.report == "log"):
        yield f"the verdict line says report {line['report']}"


def _logs_json(case: Case, found: Found) -> Iterator[str]:
    """What a child prints comes marked, as a line of the log, or not at all."""
    if case.settings.get("BOOT_LOG_FORMAT") == "text":
        return
    for line in found.err.decode(errors="replace").splitlines():
        try:
            known = isinstance(json.loads(line), dict)
        except ValueError:
            known = False
        if not known:
            yield f"a line of the log is no JSON: {line[:160]!r}"
            return


def _reports(case: Case, found: Found) -> Iterator[str]:
    if case.expect.report == "any" and not found.report:
        return
    report = report_of(case, found)
    if report is None:
        yield f"no report ({case.expect.report}): {found.report[:80]!r}"
        return
    errors = list(_schema().iter_errors(report))[:3]
    for error in errors:
        yield f"the report breaks its schema: {error.json_path} {error.message[:120]}"
    if errors:
        return
    if report["state"] not in case.expect.states:
        yield f"state {report['state']}, not {' or '.join(sorted(case.expect.states))}"
    if case.expect.says not in json.dumps(report):
        yield f"the report does not say {case.expect.says!r}"
    yield from _has_its_exit(case, found, report)
    yield from _names_the_stage(case, report)
    yield from _crashed(case, report)


def _has_its_exit(case: Case, found: Found, report: dict[str, Any]) -> Iterator[str]:
    if case.expect.report in ("left", "any") and report["state"] == "in_progress":
        if report["exit"] or report["verdict"]:
            yield "a report in progress has a verdict"
    elif not report["exit"]:
        yield f"a report that is {report['state']} has no exit"
    elif report["exit"]["process_code"] != found.code and found.code != -signal.SIGKILL:
        yield f"the report says exit {report['exit']['process_code']}, the process {found.code}"
    elif not report["exit"]["reason"]:
        yield "the report's exit has no reason"
    elif report["exit"]["code"] not in (0, 130, 143) and not report["exit"]["next_step"]:
        yield "the report's exit has no next step"


def _names_the_stage(case: Case, report: dict[str, Any]) -> Iterator[str]:
    stages = report["stages"]
    if [stage["name"] for stage in stages] != list(STAGES):
        yield f"stages {[stage['name'] for stage in stages]}"
        return
    if case.at_s is not None or 0 in case.expect.codes:
        return
    where = case.expect.where or ("stack" if case.stage == "import" else case.stage)
    begun = [stage["name"] for stage in stages if stage["started"]]
    ends_there = case.expect.report != "log"  # a lost folder does not stop the stages after it
    if ends_there and (not begun or begun[-1] != where):
        yield f"the last stage that began is {begun[-1:]}, not {where}"
    status = {stage["name"]: stage["status"] for stage in stages}
    for name in STAGES[: STAGES.index(where)]:
        if status[name] not in _ENDED:
            yield f"stage {name} before it is {status[name]}"
    blamed = report["state"] == "complete" and ends_there and where != "job"
    if blamed and status[where] not in ("error", "fail"):
        yield f"stage {where} is {status[where]}"


def _crashed(case: Case, report: dict[str, Any]) -> Iterator[str]:
    kind, crash = case.expect.kind, report["crash"]
    if kind is None:
        return
    if (crash or {}).get("kind", "") != kind:
        yield f"crash {crash and crash['kind']!r} ({crash and crash['text'][:120]}), not {kind!r}"
        return
    if crash is None:
        return
    where = case.expect.where or ("stack" if case.stage == "import" else case.stage)
    if crash["where"] != where:
        yield f"crash in {crash['where']}, not {where}"
    if crash.get("signal") != case.expect.signal:
        yield f"crash by {crash.get('signal')}, not {case.expect.signal}"
    yield from _shows_where(case, crash)


def _shows_where(case: Case, crash: dict[str, Any]) -> Iterator[str]:
    """Python stacks while the process can still write them, the kernel's view where it cannot."""
    in_python = {"sleep_forever", "sleep_without_term", "wedge", "wedge_without_term", "spin"}
    by_handler = {"segfault", "abort", "bus_error", "overflow"}
    trace = " ".join(crash["traceback"])
    struck = not case.outside and case.at_s is None
    if case.fault in in_python | by_handler and struck and "chaos_faults" not in trace:
        yield f"the trace does not name the place: {trace[:160]!r}"
    if crash["kind"] == "deadline" and not crash.get("kernel") and case.stage != "settings":
        yield "the crash has no kernel's view"


def _leaves_no_file(case: Case, found: Found) -> Iterator[str]:
    """Nothing half-written beside the report, nothing under a lost mount point."""
    if found.under:
        yield f"written under the mount point: {found.under}"
    stray = [name for name in found.files if not name.startswith(("boot-report.json", "previous/"))]
    if stray and case.expect.report == "file":
        yield f"beside the report: {stray}"


def _tells_of_another_boot(case: Case, found: Found) -> Iterator[str]:
    if case.outside != "another boot":
        return
    if not any(name.startswith("previous/") and "another" in name for name in found.files):
        yield f"the other boot's report is lost: {found.files}"
    told = [line for line in found.err.splitlines() if b"previous" in line or b"another" in line]
    if not told and "another" not in found.report:
        yield "another boot in the same folder goes unseen"


@cache
def _schema() -> Draft202012Validator:
    return Draft202012Validator(json.loads(_SCHEMA.read_text(encoding="utf-8")))


_RULES: tuple[Callable[[Case, Found], Iterator[str]], ...] = (
    _ends,
    _leaves_no_process,
    _stays_light,
    _says_one_line,
    _logs_json,
    _reports,
    _leaves_no_file,
    _tells_of_another_boot,
)
