"""The judge of pickled weights: refused unless asked for, and never where they hold code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.checks._unreadable import fault_in, step_for
from app.facts.checkpoint import CheckpointFacts, ShardFacts, TensorHeader
from app.facts.pickles import PickledFile
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, passed, skipped
from app.plan import Plan

_INDEX = "pytorch_model.bin.index.json"
_EXPECTED = (
    "safetensors; or pickles that hold tensors and nothing else, with BOOT_ALLOW_PICKLE=true"
)
_TRUSTED = "do not load it: take the model from a source that you trust, as safetensors"
_CONVERT = (
    "convert the pickled weights once, where running their code is acceptable "
    "(save_pretrained writes safetensors)"
)


def pickles(facts: CheckpointFacts, plan: Plan) -> Finding:
    """Reading a pickle runs it: it is judged by its instructions, which are not run here."""
    found = facts.pickled
    if not found.files and not found.index_problem:
        return skipped(
            f"not read: {listed(facts.pickles, 3)}"
            if facts.pickles
            else "the folder has no pickled weights"
        )
    holding = [file for file in found.files if file.code]
    if holding:
        told = [f"{one_line(file.name)} holds code: {listed(file.code, 3)}" for file in holding]
        return failed(
            listed(told, 1),
            expected=_EXPECTED,
            actual=listed(told, between="; "),
            next_step=_TRUSTED,
        )
    if not plan.allow_pickle:
        return skipped(f"{listed([f.name for f in found.files], 3)}: pickles are not asked for")
    problems = {file.name: file.problem for file in found.files if file.problem}
    if found.index_problem:
        problems = {_INDEX: found.index_problem}
    if problems:
        told = [f"{one_line(name)}: {problem}" for name, problem in problems.items()]
        return failed(
            listed(told, 1),
            expected=_EXPECTED,
            actual=listed(told, between="; "),
            next_step=step_for(facts, problems),
            fault=fault_in(facts, problems),
        )
    absent = absent_from(found.index, found.files, facts.tensors)
    if absent:
        return failed(
            f"{len(absent)} tensor(s) of the index are not in their file: {listed(absent, 3)}",
            expected=_EXPECTED,
            actual=listed(absent),
            next_step="fetch index and weights of one revision again",
        )
    n_tensors = sum(file.n_tensors for file in found.files)
    return passed(
        f"{n_tensors} tensors in {len(found.files)} pickle(s) that hold nothing else",
        expected=_EXPECTED,
        actual=listed([file.name for file in found.files]),
    )


def absent_from(
    index: Mapping[str, str],
    files: Iterable[ShardFacts | PickledFile],
    tensors: Iterable[TensorHeader],
) -> list[str]:
    """Tensors that an index promises and that their file, itself intact, does not hold."""
    held = {(header.name, header.file) for header in tensors}
    broken = {file.name for file in files if file.problem}
    return [n for n, file in index.items() if (n, file) not in held and file not in broken]


def without_safetensors(facts: CheckpointFacts, plan: Plan) -> Finding | None:
    """What the judge of the weight files says where all there is are pickles a loader opens."""
    found = facts.pickled
    if not plan.allow_pickle or not (found.files or found.index_problem):
        return None
    return skipped("the weights are pickled, as asked for (BOOT_ALLOW_PICKLE)")


def convert_step(facts: CheckpointFacts) -> str:
    """The way out for a folder of pickles."""
    found = facts.pickled.files
    if any(file.code for file in found):
        return _TRUSTED
    sound = found and not any(file.problem for file in found)
    return f"{_CONVERT}{', or set BOOT_ALLOW_PICKLE=true' if sound else ''}"
