"""What Unsloth's CUDA branches leave behind, measured cell by cell; `tests.shadow_cells` expects.

`python -m tests.shadow_table PROFILE` loads tiny models through our loader as on that profile's
card (`tests.shadow_cuda`), looks at them with our census and our checks, and writes the cells as
JSON in its last line: `{"family, asked dtype: what": value}`. An image has no pytest, and this
needs none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.checks import Check, adapter, precision
from app.facts.adapter import AdapterFacts
from app.facts.census import Census, TensorFacts
from app.outcome import Status
from app.plan import Plan
from app.probes.safetensors import read_checkpoint
from app.profiles import Profile
from tests import broken_files
from tests.broken_models import transformers_model
from tests.judge_models import plan_for
from tests.shadow_cells import ASKED, FAMILIES, Cells
from tests.shadow_cuda import asking, import_as_on
from tests.tiny_models import tiny_model


def _dtypes(tensors: Iterable[TensorFacts]) -> str:
    return _listed(each.dtype for each in tensors)


def _listed(words: Iterable[str]) -> str:
    return " ".join(sorted(set(words)))


def _kind(name: str) -> str:
    """The last word of a path: `altup_projections` of `model.altup_projections.0`."""
    return next(part for part in reversed(name.split(".")) if not part.isdigit())


def _not_passed(checks: Iterable[Check[Any]], facts: object, plan: Plan) -> str:
    """The checks that neither passed nor were skipped."""
    good = (Status.PASS, Status.SKIP)
    return _listed(each.id for each in checks if each.judge(facts, plan).status not in good)


def _look(census: Census, plan: Plan) -> Cells:
    """The dtypes of one model, and what our checks say of them."""
    parameters = census.parameters
    plain = [each for each in parameters if each.category == "other"]
    norms = [each for each in parameters if each.category == "norm"]
    towers = ("vision_tower", "audio_tower")
    declared = {census.model_dtype, *census.config_dtypes.values(), census.bnb_compute_dtype or ""}
    return {
        "first parameter": _dtypes(parameters[:1]),
        "compute": _listed(str(each.compute_dtype) for each in census.packed if each.linear),
        "quant state": _listed(each.state.dtype if each.state else "" for each in census.packed),
        "embeddings": _dtypes(each for each in parameters if each.category == "embedding"),
        "lm_head": _dtypes(each for each in parameters if each.name == "lm_head.weight"),
        "towers": _dtypes(each for each in plain if any(name in each.name for name in towers)),
        "norms": _dtypes(each for each in norms if "vision_tower" not in each.name),
        "vision norms": _dtypes(each for each in norms if "vision_tower" in each.name),
        "forced float32": str(census.forced_float32),
        "parameters": _dtypes(parameters),
        "buffers": _dtypes(census.buffers),
        "declared": _listed(declared),
        "n packed": str(len(census.packed)),
        "packed": _listed(_kind(each.name) for each in census.packed),
        "fates": _listed(each.fate for each in census.fates),
        "not passed": _not_passed(precision.CHECKS, census, plan),
    }


def _targets(facts: AdapterFacts) -> Cells:
    """Where LoRA is."""
    places = Counter(f"{each.component} {each.kind}" for each in facts.pairs)
    return {
        "LoRA": ", ".join(f"{number} {place}" for place, number in sorted(places.items())),
        "LoRA on": _listed(_kind(each.name) for each in facts.pairs),
    }


def _loaded(folder: Path, profile: Profile) -> tuple[Any, Plan]:
    from app.engine import loader

    plan = plan_for(folder, profile)
    return loader.load(plan, read_checkpoint(folder)).model, plan


def _seen(model: Any, plan: Plan) -> Cells:
    from app.engine import census

    assert plan.resolved is not None
    return _look(census.take(model, read_checkpoint(plan.resolved.folder)), plan)


def _adapted(folder: Path, profile: Profile, *, vision: bool) -> Cells:
    """The places and dtypes of the adapter, as the boot attaches it."""
    from app.engine import adapter as engine

    model, plan = _loaded(folder, profile)
    # Without dropout, as peft's pairs on fused experts can have none.
    asked = replace(plan.request, finetune_vision_layers=vision, lora_dropout=0.0)
    plan = replace(plan, request=asked)
    model = engine.attach(model, plan)
    facts, seen = engine.gather(model), _seen(model, plan)
    wrong = f"{_not_passed(adapter.CHECKS, facts, plan)} {seen['not passed']}".strip()
    return {**_targets(facts), "parameters": seen["parameters"], "not passed": wrong}


def _rows(profile: Profile, scratch: Path) -> Iterator[tuple[str, Cells]]:
    for family in FAMILIES:
        folder = tiny_model(family)
        for dtype in ASKED:
            with asking(dtype):
                model, plan = _loaded(folder, profile)
            yield f"{family}, asked {dtype}", _seen(model, plan)
        yield f"{family}, adapter", _adapted(folder, profile, vision=False)
    packed = tiny_model("gemma3n-nf4")
    yield "gemma3n-nf4, adapter with vision", _adapted(packed, profile, vision=True)
    # The checkpoint packs a layer that its own configuration skips: dequantised on load.
    folder = broken_files.copy(packed, scratch / "model")
    broken_files.skip(folder, broken_files.SKIPPED)
    yield "gemma3n-nf4, a layer skipped", _seen(*_loaded(folder, profile))
    # As float16 on either card: the packed layers keep the bfloat16 of the file's configuration.
    yield "gemma3n-nf4, plain", _seen(transformers_model(packed), plan_for(packed, profile))


def main(name: str) -> None:
    """All rows as on one card, in a process of its own."""
    profile = import_as_on(name)
    with tempfile.TemporaryDirectory() as scratch:
        rows = dict(_rows(profile, Path(scratch)))
    # What a family does not have is no cell, but that nothing fails is one.
    found = {
        f"{row}: {what}": value
        for row, cells in rows.items()
        for what, value in cells.items()
        if value or what == "not passed"
    }
    print(json.dumps(found))  # noqa: T201 - for the process that started this one


if __name__ == "__main__":
    main(sys.argv[1])
