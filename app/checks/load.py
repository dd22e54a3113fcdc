"""Judges of the load: is the model in memory the one on disk, all of it and nothing else."""

from __future__ import annotations

from app.checks import Check
from app.facts.load import LoadFacts
from app.facts.words import listed
from app.outcome import Fault, Finding, failed, passed, unread, warned
from app.plan import Plan


def weights_from_checkpoint(facts: LoadFacts, _plan: Plan) -> Finding:
    """Whether every weight came from the checkpoint; transformers fills the rest at random."""
    if not facts.observed:
        return unread(
            "nothing is known about this load: it went past transformers' own loading",
            expected="a load through transformers, which tells the names it had no weights for",
            actual="no such account",
            next_step="the model's code loads by itself; report it with this file",
            fault=Fault.INTERNAL,
        )
    wrong = (*facts.missing, *facts.mismatched)
    if wrong:
        return failed(
            f"{len(wrong)} weights are random numbers, not the checkpoint's: {listed(wrong)}",
            expected="every weight of the model is in the checkpoint, in the model's shape",
            actual=f"{len(facts.missing)} missing, {len(facts.mismatched)} of another shape",
            next_step="use a complete checkpoint that fits its own config.json",
        )
    return passed(
        f"every weight of {facts.model_class} came from the checkpoint",
        actual=f"{len(facts.files)} files in {facts.seconds:.1f} s{_aligned(facts)}",
    )


def _aligned(facts: LoadFacts) -> str:
    if not facts.aligned:
        return ""
    return f", {len(facts.aligned)} brought to the profile's types: {listed(facts.aligned)}"


def only_the_folder(facts: LoadFacts, _plan: Plan) -> Finding:
    """Whether the resolved folder is what was loaded; names are rewritten on the way down."""
    if facts.foreign_files:
        return failed(
            f"weights were read from elsewhere: {listed(facts.foreign_files)}",
            expected=facts.folder,
            actual=listed(facts.foreign_files),
            next_step="name a folder that no library takes for another model, and report it",
        )
    if not facts.files:
        return unread(
            "no weight file was seen being opened",
            expected=f"the files of {facts.folder}",
            actual="none",
            next_step="the model's code loads by itself; report it with this file",
            fault=Fault.INTERNAL,
        )
    return passed(f"loaded from {facts.folder}", actual=listed(facts.files))


def nothing_left_over(facts: LoadFacts, _plan: Plan) -> Finding:
    """Tensors that the model has no place for: often harmless, sometimes another architecture."""
    if facts.dropped:
        return failed(
            f"{len(facts.dropped)} tensors of the model's own layers went nowhere: "
            f"{listed(facts.dropped)}",
            expected="config.json describes all layers and biases that the weights have",
            actual=f"{len(facts.dropped)} dropped",
            next_step="use the config.json that belongs to these weights",
        )
    if facts.unexpected:
        return warned(
            f"{len(facts.unexpected)} tensors of the checkpoint went nowhere: "
            f"{listed(facts.unexpected)}",
            expected="the model has a place for every tensor, or its class ignores the key",
            actual=f"{len(facts.unexpected)} unused",
            next_step="check that config.json names the architecture that wrote these weights",
        )
    return passed("the model has a place for every tensor of the checkpoint")


def tokenizer(facts: LoadFacts, _plan: Plan) -> Finding:
    """Unsloth returns None for a tokenizer it could not load, and goes on."""
    if not facts.tokenizer_class:
        return failed(
            "the model came without a tokenizer",
            expected="a tokenizer or processor from the model folder",
            actual="None",
            next_step="add the tokenizer's files to the model folder",
        )
    return passed(f"tokenizer: {facts.tokenizer_class}")


CHECKS: tuple[Check[LoadFacts], ...] = (
    Check(
        "load.weights_from_checkpoint",
        Fault.DATA_INVALID,
        "transformers' loading info (missing and mismatched keys, tied weights excepted)",
        weights_from_checkpoint,
        cause="an incomplete checkpoint, or a config.json of another model: transformers fills "
        "what is missing at random",
        fix="use a complete checkpoint that fits its own config.json",
    ),
    Check(
        "load.only_the_folder",
        Fault.INTERNAL,
        "the resolved folder",
        only_the_folder,
        cause="the loader rewrote the name and took other files than those that were judged",
        fix="report it with this file; a folder's own name must not look like a repository's",
    ),
    Check(
        "load.nothing_left_over",
        Fault.DATA_INVALID,
        "transformers' loading info (unexpected keys)",
        nothing_left_over,
        cause="the weights of another architecture, or of a newer release of the same model",
        fix="check that config.json names the architecture that wrote these weights",
    ),
    Check(
        "load.tokenizer",
        Fault.DATA_INVALID,
        "FastModel.from_pretrained",
        tokenizer,
        cause="tokenizer files that are missing or that this release of transformers cannot read",
        fix="add the tokenizer's files of the same revision to the model folder",
    ),
)
