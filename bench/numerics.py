"""What the proof costs: the stages stack and numerics, part by part, against a bare load.

`python -P -m bench.numerics [--hardware NAME] [--rounds N] [--larger] [--out FILE]`, see README.md
beside this file. With --out the result is what a profile names as its evidence.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.profiles import PROFILES, Profile
from bench.measure import Failed, cpu_model, measured, spread
from bench.startup import CACHE, ROOT, STEPS, Run, bare, boot, environment, job_of, say, tell

ROUNDS = 5
_BUILD_S = 900.0
# The parts of the numerics stage that tell their own seconds, by their field of the report.
_TIMED = ("cast", "nf4", "weights", "steps", "generation", "headroom", "fingerprint", "speed")
_PROOF = ("nf4", "weights", "census")  # golden, scan and census: the ones with a goal
_GOAL = 0.02  # of a boot on a GPU


def main(arguments: Sequence[str]) -> int:
    """Warm up, measure, tell."""
    options = _options(arguments)
    profile = PROFILES[options.hardware]
    try:
        environ = environment(os.environ)
        if options.larger:
            environ = environ | {"BOOT_BASE_MODEL_ID": str(_larger(environ))}
        job = job_of(environ, STEPS, profile)
        rounds = [_round(environ, job, profile, number) for number in range(options.rounds + 1)][1:]
    except Failed as failure:
        say(f"failed: {failure}")
        return 1
    found = _summary(rounds, profile)
    tell(found, _table(found), options.out)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.numerics")
    parser.add_argument("--hardware", choices=tuple(PROFILES), default="cpu")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--larger", action="store_true", help="a Llama of 0.5 billion parameters")
    parser.add_argument("--out", type=Path, help="file for the JSON, besides standard output")
    return parser.parse_args(arguments)


def _larger(environ: Mapping[str, str]) -> Path:
    folder = CACHE / "larger"
    if not folder.is_dir():
        say("building the larger model")
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "bench.larger", str(folder)]
        measured(command, environ, ROOT, _BUILD_S)
    return folder


def _round(
    environ: Mapping[str, str], job: dict[str, Any], profile: Profile, number: int
) -> dict[str, Run]:
    """A boot and a bare load, the other one first in the next round."""
    runs = {
        "boot": lambda: boot(environ, job["steps"], profile),
        "bare": lambda: bare(environ, job | {"steps": 0}, profile),
    }
    order = sorted(runs, reverse=number % 2 == 0)
    found = {kind: runs[kind]() for kind in order}
    walls = ", ".join(f"{kind} {run.cost.wall_s:.1f} s" for kind, run in found.items())
    say(f"round {number or 'to warm up'}: {walls}")
    return found


def _seconds(report: dict[str, Any]) -> dict[str, float]:
    """Of each part of the proof. Unsloth's import is part of the stage stack, and is none."""
    kernels = report["software"]["kernels"]
    found = {"kernels": sum(each["first_s"] + each["again_s"] for each in kernels)}
    numerics = report["numerics"]
    found |= {name: numerics[name]["seconds"] for name in _TIMED if numerics[name]}
    found["census"] = sum(each["seconds"] for each in report["precision"]["observed"].values())
    stages = {stage["name"]: stage["duration_s"] for stage in report["stages"]}
    # The look after the load and the one after the adapter are stages of their own.
    found["stage numerics"] = stages["numerics"]
    return found


def _summary(rounds: list[dict[str, Run]], profile: Profile) -> dict[str, Any]:
    boots = [runs["boot"] for runs in rounds]
    seconds = [_seconds(run.told) for run in boots]
    shares = {
        name: spread(each[name] / run.cost.wall_s for each, run in zip(seconds, boots, strict=True))
        for name in seconds[0]
    }
    proof = [sum(each[name] for name in _PROOF) for each in seconds]
    whole = [each["kernels"] + each["stage numerics"] for each in seconds]
    report = boots[0].told
    numerics = report["numerics"]
    return {
        "bench": "numerics",
        "date": datetime.now(tz=UTC).date().isoformat(),
        "hardware": profile.name,
        "device": report["software"]["device"],
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": report["software"]["packages"],
        "gpus": report["gpus"],
        "model": {key: report["model"][key] for key in ("requested_id", "n_bytes", "n_packed")},
        "boot_s": spread(run.cost.wall_s for run in boots),
        "bare_s": spread(runs["bare"].cost.wall_s for runs in rounds),
        "parts_s": {name: spread(each[name] for each in seconds) for name in seconds[0]},
        "shares_of_boot": shares,
        "golden_scan_census_of_boot": spread(
            part / run.cost.wall_s for part, run in zip(proof, boots, strict=True)
        ),
        "stack_and_numerics_of_bare": spread(
            part / runs["bare"].cost.wall_s for part, runs in zip(whole, rounds, strict=True)
        ),
        "kernels": report["software"]["kernels"],
        **{name: numerics[name] for name in ("nf4", "speed", "steps", "headroom", "fingerprint")},
    }


def _table(found: dict[str, Any]) -> str:
    boot_s, bare_s = (found[name]["median"] for name in ("boot_s", "bare_s"))
    where = f"{found['hardware']}: {found['device']}, {found['cores']} cores"
    lines = [
        f"{where}, boot {boot_s:.1f} s, bare load {bare_s:.1f} s",
        f"{'':24}{'seconds':>10}{'of boot':>10}",
    ]
    lines += [
        f"{name:24}{each['median']:10.3f}{found['shares_of_boot'][name]['median']:10.1%}"
        for name, each in found["parts_s"].items()
    ]
    proof = found["golden_scan_census_of_boot"]["median"]
    whole = found["stack_and_numerics_of_bare"]["median"]
    return "\n".join(
        [
            *lines,
            f"golden, scan and census: {proof:.2%} of the boot (goal on a GPU: {_GOAL:.0%})",
            f"kernels and the stage numerics: {whole:.1%} of a bare load",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
