"""Facts of one load: which files were opened, and which weights they did not hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What transformers itself recorded while it loaded the model.

    Names are the model's. `missing` were not in the checkpoint and hold random numbers now;
    `mismatched` were there with another shape; `unexpected` were in the checkpoint and went
    nowhere, without the keys that the model's class ignores on purpose; `dropped` are those of them
    that belong to the model's own layers or modules. `aligned` were given the profile's types after
    the load, which happens on Unsloth's CPU backend only. `foreign_files` are weight
    files outside the resolved folder that were opened. `observed` is False when the load went
    past transformers' own loading, so that nothing is known. Empty `tokenizer_class`: no tokenizer.
    """

    folder: str
    device: str
    model_class: str
    tokenizer_class: str
    observed: bool
    files: tuple[str, ...] = ()
    foreign_files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    aligned: tuple[str, ...] = ()
    seconds: float = 0.0
