"""How long a whole boot takes against the bare library calls, and how light the supervisor is.

`python -P -m bench.startup [--rounds N] [--steps N] [--out FILE]`, see README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.config import ModelRequest
from app.engine.arguments import adapter_arguments
from app.engine.environment import pin
from app.profiles import CPU, Profile
from bench.measure import Cost, Failed, cpu_model, measured, spread

ROOT = Path(__file__).resolve().parent.parent
# Of its own, so that the figures do not depend on what else has been booted here.
CACHE = ROOT / ".cache" / "bench"
TARGET_BYTES = 60 * 10**6  # the supervisor's resident peak stays below this
STEPS = 3  # the default of BOOT_STEPS
ROUNDS = 6  # each kind is twice the first of a round
_LIMIT_S = 600.0  # a run takes about ten seconds
_PACKAGES = ("torch", "unsloth", "transformers", "peft", "bitsandbytes")
_BARE = {"bare": "bare calls", "bare_steps": "bare calls and steps"}
_KINDS = ("boot", *_BARE)
_MEASURES = {"wall_s": "seconds", "cpu_s": "processor seconds"}


@dataclass(frozen=True)
class Run:
    """What a run cost, and what it told: a report, or the times of the bare calls."""

    cost: Cost
    told: dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Warm up, measure, tell."""
    options = _options(arguments)
    environ = environment(os.environ)
    rounds = []
    try:
        job = job_of(environ, options.steps)
        for number in range(options.rounds + 1):
            runs = _round(environ, job, number)
            say(_line(number, runs))
            if number:  # the first one fills the caches
                rounds.append(runs)
    except Failed as failure:
        say(f"failed: {failure}")
        return 1
    found = _summary(rounds, options.steps)
    tell(found, _table(found), options.out)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.startup")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps (BOOT_STEPS)")
    parser.add_argument("--out", type=Path, help="file for the JSON, besides standard output")
    return parser.parse_args(arguments)


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What all runs get: nothing of a user's BOOT_* settings, caches of our own."""
    kept = {name: text for name, text in inherited.items() if not name.startswith("BOOT_")}
    # Told to write no bytecode, Python compiles the stack anew in every process.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    ours = {"XDG_CACHE_HOME": CACHE, "HF_HOME": CACHE / "huggingface", "PYTHONPATH": ROOT}
    return kept | {name: str(path) for name, path in ours.items()}


def job_of(environ: Mapping[str, str], steps: int, profile: Profile = CPU) -> dict[str, Any]:
    """What the bare calls are to do: what a first boot has done, which builds the model too."""
    report = boot(environ, steps, profile).told
    request = ModelRequest()
    return {
        "folder": report["model"]["folder"],
        # As app/engine/loader.py has them.
        "load": {
            "max_seq_length": request.max_seq_length,
            "load_in_4bit": request.load_in_4bit,
            "dtype": profile.compute_dtype,
            "device_map": {"": 0 if profile.needs_gpu else profile.device},
            "use_exact_model_name": True,
            "offload_embedding": False,
            "use_gradient_checkpointing": request.use_gradient_checkpointing,
        },
        "adapter": adapter_arguments(request),
        "pairs": report["adapter"]["n_pairs"],
        "steps": steps,
        "tokens": report["numerics"]["steps"]["n_tokens"],
    }


def _round(environ: Mapping[str, str], job: dict[str, Any], number: int) -> dict[str, Run]:
    """One run of each kind, each of them first in its turn."""
    first = number % len(_KINDS)
    found = {}
    for kind in (*_KINDS[first:], *_KINDS[:first]):
        if kind == "boot":
            found[kind] = boot(environ, job["steps"])
        else:
            found[kind] = bare(environ, job | ({"steps": 0} if kind == "bare" else {}))
    return found


def boot(environ: Mapping[str, str], steps: int, profile: Profile = CPU) -> Run:
    """A whole boot by the command line."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "BOOT_HARDWARE": profile.name,
            "BOOT_REPORT_DIR": folder,
            "BOOT_STEPS": str(steps),
        }
        command = [sys.executable, "-P", "-m", "app.boot"]
        cost, _ = measured(command, {**environ, **settings}, ROOT, _LIMIT_S)
        report = json.loads((Path(folder) / "boot-report.json").read_text(encoding="utf-8"))
    if report["verdict"] == "fail":
        raise Failed(f"the boot's verdict is {report['verdict']}")
    return Run(cost, report)


def bare(environ: Mapping[str, str], job: dict[str, Any], profile: Profile = CPU) -> Run:
    """The library calls alone, under the very variables that the worker sets for itself."""
    pinned = dict(environ)
    pin(profile, pinned)
    command = [sys.executable, "-P", "-m", "bench.bare", json.dumps(job)]
    cost, output = measured(command, pinned, ROOT, _LIMIT_S)
    told = json.loads(output.splitlines()[-1])
    if told["pairs"] != job["pairs"]:
        raise Failed(f"the boot attaches {job['pairs']} LoRA pairs, the bare calls {told['pairs']}")
    return Run(cost, told)


def _summary(rounds: list[dict[str, Run]], steps: int) -> dict[str, Any]:
    boots = [runs["boot"] for runs in rounds]
    peak = max(boot.cost.peak_bytes for boot in boots)
    stages = {
        stage["name"]: spread(boot.told["stages"][at]["duration_s"] for boot in boots)["median"]
        for at, stage in enumerate(boots[0].told["stages"])
    }
    return {
        "bench": "startup",
        "device": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "steps": steps,
        "ratios": {
            f"boot_to_{kind}_{what}": spread(
                getattr(runs["boot"].cost, what) / getattr(runs[kind].cost, what) for runs in rounds
            )
            for what in _MEASURES
            for kind in _BARE
        },
        **{
            what: {
                kind: spread(getattr(runs[kind].cost, what) for runs in rounds) for kind in _KINDS
            }
            for what in _MEASURES
        },
        "supervisor": {"peak_bytes": peak, "target_bytes": TARGET_BYTES},
        "worker_peak_bytes": max(boot.told["memory"]["worker_peak_bytes"] for boot in boots),
        "bare_peak_bytes": max(runs["bare_steps"].cost.peak_bytes for runs in rounds),
        "boot_stages_s": stages,
        "bare_parts_s": _parts([runs["bare_steps"] for runs in rounds]),
        "rounds": [{kind: round(runs[kind].cost.wall_s, 3) for kind in _KINDS} for runs in rounds],
    }


def _parts(runs: list[Run]) -> dict[str, float]:
    """Medians of what the bare calls spent in each part; starting Python counts as its end."""
    names = list(runs[0].told["ends"])
    found: dict[str, list[float]] = {name: [] for name in (*names, "interpreter")}
    for run in runs:
        ends = [0.0, *(run.told["ends"][name] for name in names), run.cost.wall_s]
        for name, (start, end) in zip(found, pairwise(ends), strict=True):
            found[name].append(end - start)
    return {name: round(statistics.median(values), 3) for name, values in found.items()}


def _table(found: dict[str, Any]) -> str:
    rows = [
        (f"boot / {title}, {unit}", found["ratios"][f"boot_to_{kind}_{what}"])
        for what, unit in _MEASURES.items()
        for kind, title in _BARE.items()
    ]
    titles = {"boot": "boot", **_BARE}
    rows += [
        (f"{titles[kind]}, {unit}", found[what][kind])
        for what, unit in _MEASURES.items()
        for kind in _KINDS
    ]
    lines = [
        f"{found['device']}, {found['cores']} cores, {len(found['rounds'])} rounds",
        f"{'':46}{'median':>8}{'min':>8}{'max':>8}",
        *(f"{title:46}{r['median']:8.2f}{r['min']:8.2f}{r['max']:8.2f}" for title, r in rows),
    ]
    peak, target = (found["supervisor"][f"{name}_bytes"] / 1e6 for name in ("peak", "target"))
    word = "below" if peak < target else "NOT below"
    return "\n".join([*lines, f"the supervisor's peak: {peak:.1f} MB, {word} {target:.0f} MB"])


def _line(number: int, runs: dict[str, Run]) -> str:
    name = f"round {number}" if number else "warm-up"
    return f"{name}: " + ", ".join(f"{kind} {runs[kind].cost.wall_s:.1f} s" for kind in _KINDS)


def tell(found: Mapping[str, Any], table: str, out: Path | None) -> None:
    """The table for whoever watches; the JSON to standard output, and to a file."""
    say(table)
    text = json.dumps(found, indent=2) + "\n"
    if out:
        out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def say(text: str) -> None:
    """A line for whoever watches; the result goes to standard output."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
