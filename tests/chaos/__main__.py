"""`python -m tests.chaos [-k WORD] [--list] [--jobs N] [--out FILE] [--keep]`, or `make chaos`.

Runs the matrix, says a line a boot and a table at the end, writes a JSON line a boot, and exits
with 1 if any boot broke a rule. Needs root for the cases with mounts and limits; says what it
left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.boots import Found, boot
from tests.chaos.cases import Case
from tests.chaos.judge import broken, report_of
from tests.chaos.matrix import CASES
from tests.chaos.places import can_mount
from tests.tiny_models import tiny_model


@dataclass(frozen=True, slots=True)
class Result:
    """One boot and its judgement; `kept` is its folder where a rule was broken."""

    case: Case
    found: Found
    broken: list[str]
    kept: str | None

    def record(self) -> dict[str, object]:
        """As a JSON line."""
        report = report_of(self.case, self.found) or {}
        crash = report.get("crash") or {}
        return {
            "case": self.case.name,
            "stage": self.case.stage,
            "fault": self.case.fault,
            "outside": self.case.outside,
            "expected": sorted(self.case.expect.codes),
            "why": self.case.expect.why,
            "code": self.found.code,
            "state": report.get("state"),
            "crash": crash.get("kind"),
            "reason": (report.get("exit") or {}).get("reason"),
            "took_s": round(self.found.took, 2),
            "lasted_s": round(self.found.lasted, 2),
            "within_s": self.case.within_s,
            "supervisor_peak_kb": self.found.peak_kb,
            "left": self.found.left,
            "broken": self.broken,
            "kept": self.kept,
        }


def run(case: Case, *, keep: bool = False) -> Result:
    """One boot in a temporary folder, which is kept where a rule was broken."""
    folder = Path(tempfile.mkdtemp(prefix="bootguard-chaos-"))
    found = boot(case, folder)
    rules = broken(case, found)
    if rules or keep:
        return Result(case, found, rules, str(folder))
    shutil.rmtree(folder, ignore_errors=True)
    return Result(case, found, rules, None)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; 1 if any rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("-k", default="", help="only boots whose name has one of these words, by ,")
    parser.add_argument("--heavy", choices=("no", "only"), help="boots whose worker gets to run")
    parser.add_argument("--list", action="store_true", help="names and expectations, and no boot")
    parser.add_argument("--jobs", type=int, default=2, help="boots at a time")
    parser.add_argument("--out", type=Path, default=Path("reports/chaos.jsonl"))
    parser.add_argument("--keep", action="store_true", help="keep every boot's folder")
    asked = parser.parse_args(arguments)
    words = asked.k.split(",")
    cases = [case for case in CASES if any(word in case.name for word in words)]
    if asked.heavy:
        cases = [case for case in cases if case.heavy == (asked.heavy == "only")]
    if asked.list:
        for case in cases:
            codes = ",".join(map(str, sorted(case.expect.codes)))
            _say(f"{case.name:<36} {codes:<10} {case.expect.why}")
        return 0
    able = [case for case in cases if can_mount() or not case.needs_root]
    tiny_model("llama-nf4")  # built once, and not within a boot's time
    began = time.monotonic()
    results = _run_all(able, asked.jobs, asked.out, keep=asked.keep)
    _sum_up(results, len(cases) - len(able), time.monotonic() - began)
    return 1 if any(result.broken for result in results) or not results else 0


def _run_all(cases: Sequence[Case], jobs: int, out: Path, *, keep: bool) -> list[Result]:
    results = []
    out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool, out.open("w", encoding="utf-8") as file:
        waiting = [pool.submit(run, case, keep=keep) for case in cases]
        for each in as_completed(waiting):
            result = each.result()
            results.append(result)
            file.write(json.dumps(result.record()) + "\n")
            file.flush()
            found = result.found
            verdict = "BROKEN" if result.broken else "ok"
            _say(f"{verdict:<7}{result.case.name:<36} exit {found.code!s:<5}{found.lasted:6.1f} s")
            for text in result.broken:
                _say(f"       {text}")
            if result.kept:
                _say(f"       {result.kept}")
    return results


def _sum_up(results: Sequence[Result], left_out: int, seconds: float) -> None:
    """Boots and broken ones by stage, then the totals."""
    boots = Counter(result.case.stage for result in results)
    bad = Counter(result.case.stage for result in results if result.broken)
    _say(f"\n{'stage':<12}{'boots':>6}{'broken':>8}{'slowest end':>13}")
    for stage, number in boots.items():
        slowest = max(r.found.lasted for r in results if r.case.stage == stage)
        _say(f"{stage:<12}{number:>6}{bad[stage]:>8}{slowest:>11.1f} s")
    peak = max((result.found.peak_kb for result in results), default=0)
    _say(
        f"{len(results)} boots in {seconds:.0f} s, {sum(bad.values())} broke a rule; "
        f"the heaviest supervisor took {peak / 1024:.0f} MB; {left_out} left out for want of root"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
