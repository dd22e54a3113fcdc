"""How long a model folder takes to be read and judged, by layout, at the size of real models.

`python -P -m bench.checkpoint [--rounds N]`, on a machine that does nothing else; see README.md
beside this file. A layout is measured in a process of its own. The columns: milliseconds of all
rounds (median, least and most), of the first round alone, of judging alone; how many times that is
what Python's json alone takes for the same headers and files; memory that the first round took
beyond the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from app.checks.checkpoint import CHECKS
from app.config import ModelRequest
from app.outcome import Status
from app.plan import Plan
from app.probes.safetensors import read_checkpoint
from app.profiles import PROFILES
from bench.measure import peak_bytes
from bench.sparse_models import NESTED, PACKED, Layout, write

_ROUNDS = 11
_HEAD = """| folder | ms | first | judging | against json | MB |
|---|---|---|---|---|---|
"""
LAYOUTS: Mapping[str, Layout] = {
    "16 bit, 2,000 tensors": Layout(2000),
    "16 bit, 12,000 tensors": Layout(12_000),
    "4 bit nested, 2,000": Layout(2000, n_items=NESTED),
    "4 bit nested, 12,000": Layout(12_000, n_items=NESTED),
    "4 bit plain scales, 2,000": Layout(2000, n_items=PACKED),
    "tokenizer of 262,144": Layout(2000, large_tokenizer=True),
}


@dataclass(frozen=True)
class Figures:
    """Of one folder: seconds by round, bytes of memory that the first round took, what failed."""

    read_s: list[float]
    judge_s: list[float]
    bare_s: list[float]
    peak_bytes: int
    failed: dict[str, str]


def measure(folder: Path, rounds: int) -> Figures:
    """Read and judge it, and parse its JSON with nothing else, in turns."""
    plan = Plan(PROFILES["h100"], ModelRequest(), Path("reports"), None, "never")
    before = peak_bytes(os.getpid())
    peak, failed = 0, {}
    reads, judges, bares = [], [], []
    for number in range(rounds):
        began = time.perf_counter()
        facts = read_checkpoint(folder)
        middle = time.perf_counter()
        findings = {check.id: check.judge(facts, plan) for check in CHECKS}
        ended = time.perf_counter()
        if not number:
            peak = peak_bytes(os.getpid()) - before
            failed = {k: v.reason for k, v in findings.items() if v.status is Status.FAIL}
        _parse(folder)
        reads.append(middle - began)
        judges.append(ended - middle)
        bares.append(time.perf_counter() - ended)
    return Figures(reads, judges, bares, peak, failed)


def _parse(folder: Path) -> None:
    """What any reader must do: json over the headers and the JSON files, nothing is checked."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            if path.suffix == ".json":
                json.loads(file.read())
            else:
                json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def _line(name: str, told: Figures) -> str:
    """Milliseconds, the best and the median; the ratio is of medians."""
    wholes = [read + judge for read, judge in zip(told.read_s, told.judge_s, strict=True)]
    median = statistics.median(wholes)
    parts = [
        f"| {name}",
        f"{1000 * median:.0f} ({1000 * min(wholes):.0f} to {1000 * max(wholes):.0f})",
        f"{1000 * wholes[0]:.0f}",
        f"{1000 * statistics.median(told.judge_s):.0f}",
        f"{median / statistics.median(told.bare_s):.1f}",
        f"{told.peak_bytes / 1e6:.1f} |",
    ]
    return " | ".join(parts) + "".join(f"\n{key}: {why}" for key, why in told.failed.items())


def main(arguments: Sequence[str]) -> int:
    """Write each folder, measure it in a process of its own, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--folder", type=Path, help="measure this folder alone, in JSON")
    options = parser.parse_args(arguments)
    if options.folder:
        sys.stdout.write(json.dumps(asdict(measure(options.folder, options.rounds))) + "\n")
        return 0
    sys.stdout.write(_HEAD)
    for name, layout in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), layout)
            command = [sys.executable, "-P", "-m", "bench.checkpoint", "--folder", folder]
            command += ["--rounds", str(options.rounds)]
            told = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        sys.stdout.write(_line(name, Figures(**json.loads(told.stdout))) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
