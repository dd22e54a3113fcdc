"""How soon a boot that cannot work says so: whole processes, from start to exit.

`python -P -m bench.preflight [--rounds N] [--out FILE]`, see README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.exits import ExitCode
from bench.measure import Cost, Failed, cpu_model, measured, spread

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"
ROUNDS = 10
_LIMIT_S = 60.0


@dataclass(frozen=True, eq=False)  # compared, and hashed, as the object that it is
class Case:
    """A boot that must fail: its settings, its exit status, and within how many seconds."""

    title: str
    code: ExitCode
    target_s: float
    settings: Mapping[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str]) -> int:
    """Warm up, measure, tell."""
    parser = argparse.ArgumentParser(prog="bench.preflight")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="file for the JSON, besides standard output")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = _summary(_rounds(_cases(Path(folder)), options.rounds, Path(folder)))
        except Failed as failure:
            _say(f"failed: {failure}")
            return 1
    _say(_table(found))
    text = json.dumps(found, indent=2) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


def _cases(folder: Path) -> tuple[Case, ...]:
    return (
        Case("a bad setting", ExitCode.CONFIG, 0.4, {"BOOT_HARDWARE": "a100"}),
        Case("no GPU", ExitCode.NODE_UNFIT, 0.6, {"BOOT_HARDWARE": "h100"}),
        Case(
            "a corrupt checkpoint",
            ExitCode.DATAERR,
            1.0,
            {"BOOT_HARDWARE": "cpu", "BOOT_BASE_MODEL_ID": str(_corrupt(folder / "model"))},
        ),
    )


def _corrupt(folder: Path) -> Path:
    """A model folder whose only shard ends before its data does."""
    folder.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    header = {"model.norm.weight": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}
    raw = json.dumps(header).encode()
    files = {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}}}',
        "tokenizer_config.json": b"{}",
        "model.safetensors": struct.pack("<Q", len(raw)) + raw + bytes(100),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _rounds(cases: Sequence[Case], n_rounds: int, folder: Path) -> dict[Case | None, list[Cost]]:
    """Costs by case; None is the empty interpreter. A first round fills the caches."""
    environ = _environment(os.environ)
    found: dict[Case | None, list[Cost]] = {case: [] for case in (None, *cases)}
    for number in range(n_rounds + 1):
        for case, costs in found.items():
            cost = _run(case, environ, folder / "reports")
            if number:
                costs.append(cost)
    return found


def _run(case: Case | None, environ: Mapping[str, str], reports: Path) -> Cost:
    if case is None:
        return measured([sys.executable, "-P", "-c", "pass"], environ, ROOT, _LIMIT_S)[0]
    settings = {**case.settings, "BOOT_REPORT_DIR": str(reports)}
    command = [sys.executable, "-P", "-m", "app.boot"]
    environ = {**environ, **settings}
    cost, _ = measured(command, environ, ROOT, _LIMIT_S, status=int(case.code))
    return cost


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    kept = {name: text for name, text in inherited.items() if not name.startswith("BOOT_")}
    # Told to write no bytecode, Python compiles everything anew in every process.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    ours = {"XDG_CACHE_HOME": CACHE, "HF_HOME": CACHE / "huggingface", "PYTHONPATH": ROOT}
    return kept | {name: str(path) for name, path in ours.items()}


def _summary(found: Mapping[Case | None, list[Cost]]) -> dict[str, Any]:
    empty = found[None]
    cases = {case: costs for case, costs in found.items() if case is not None}
    return {
        "bench": "preflight",
        "device": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "rounds": len(empty),
        "empty_s": spread(cost.wall_s for cost in empty),
        "cases": {
            case.title: {
                "exit": int(case.code),
                "wall_s": spread(cost.wall_s for cost in costs),
                "cpu_s": spread(cost.cpu_s for cost in costs),
                "to_empty": spread(
                    cost.wall_s / base.wall_s for cost, base in zip(costs, empty, strict=True)
                ),
                "target_s": case.target_s,
            }
            for case, costs in cases.items()
        },
    }


def _table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['device']}, {found['cores']} cores, {found['rounds']} rounds",
        f"{'':28}{'median':>8}{'min':>8}{'max':>8}{'/ empty':>9}{'target':>8}",
    ]
    for title, case in found["cases"].items():
        wall, ratio = case["wall_s"], case["to_empty"]["median"]
        lines.append(
            f"{title + ', seconds':28}{wall['median']:8.3f}{wall['min']:8.3f}{wall['max']:8.3f}"
            f"{ratio:9.1f}{case['target_s']:8.1f}"
        )
    return "\n".join(lines)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
