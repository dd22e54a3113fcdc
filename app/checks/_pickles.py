"""The judge of pickled weights: refused unless asked for, and never where they hold code."""

from __future__ import annotations

from app.checks._unreadable import fault_in, step_for
from app.facts.checkpoint import CheckpointFacts
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, passed, skipped
from app.plan import Plan

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
    found = facts.beside.pickled
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
        problems = {"pytorch_model.bin.index.json": found.index_problem}
    if problems:
        told = [f"{one_line(name)}: {problem}" for name, problem in problems.items()]
        return failed(
            listed(told, 1),
            expected=_EXPECTED,
            actual=listed(told, between="; "),
            next_step=step_for(facts, problems),
            fault=fault_in(facts, problems),
        )
    if found.not_in_file:
        return failed(
            f"{len(found.not_in_file)} tensor(s) of the index are not in their file: "
            f"{listed(found.not_in_file, 3)}",
            expected=_EXPECTED,
            actual=listed(found.not_in_file),
            next_step="fetch index and weights of one revision again",
        )
    n_tensors = sum(file.n_tensors for file in found.files)
    return passed(
        f"{n_tensors} tensors in {len(found.files)} pickle(s) that hold nothing else",
        expected=_EXPECTED,
        actual=listed([file.name for file in found.files]),
    )


def without_safetensors(facts: CheckpointFacts, plan: Plan) -> Finding | None:
    """What the judge of the weight files says where all there is are pickles a loader opens."""
    found = facts.beside.pickled
    if not plan.allow_pickle or not (found.files or found.index_problem):
        return None
    return skipped("the weights are pickled, as asked for (BOOT_ALLOW_PICKLE)")


def convert_step(facts: CheckpointFacts) -> str:
    """The way out for a folder of pickles."""
    found = facts.beside.pickled.files
    if any(file.code for file in found):
        return _TRUSTED
    sound = found and not any(file.problem for file in found)
    return f"{_CONVERT}{', or set BOOT_ALLOW_PICKLE=true' if sound else ''}"
