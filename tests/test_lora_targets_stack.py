"""The LoRA targets told from a file's names are those that the adapter stage finds in the model."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.facts.adapter import Asked
from app.facts.checkpoint import CheckpointFacts, TensorHeader
from app.facts.lora_targets import find_targets
from app.outcome import Status
from app.plan import Resolved
from app.probes.model_types import read_families
from app.probes.safetensors import read_checkpoint, read_headers
from tests.fakes_preflight import findings
from tests.other_families import FAMILIES
from tests.stack_models import adapted, load, plan_for
from tests.test_adapter_stack import FAMILIES as ON_META
from tests.test_adapter_stack import FLAGS, meta_model
from tests.tiny_models import KINDS, Kind

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_what_gets_a_pair(kind: Kind) -> None:
    plan = plan_for(kind)
    assert plan.resolved is not None
    facts = read_checkpoint(plan.resolved.folder)
    told = find_targets(facts, load_in_4bit=True).expected(Asked.of(plan.request))
    model, _ = adapted(plan)
    from app.engine.adapter import gather

    pairs = gather(model).pairs
    assert len(told) == len(pairs) > 0
    assert {each.name for each in told} == {pair.name for pair in pairs}


def headers_of(model: Any) -> tuple[TensorHeader, ...]:
    """The model's tensors as a file would name them."""
    return tuple(
        TensorHeader(name, "BF16", tuple(tensor.shape), 2 * tensor.numel(), "model.safetensors")
        for name, tensor in model.state_dict().items()
    )


@pytest.mark.parametrize("family", ON_META)
def test_other_families_agree_module_by_module(family: str) -> None:
    model = meta_model(family)
    from app.engine.adapter import projections

    found = projections(model)
    facts = CheckpointFacts(Path(), config=model.config.to_dict(), tensors=headers_of(model))
    told = find_targets(facts, load_in_4bit=True)
    assert not told.problem
    for asked in FLAGS:
        real = {each.name for each in found if asked.requires(each)}
        assert {each.name for each in told.expected(asked)} == real, asked
        places = ((each.component, each.kind) for each in (*told.projections, *told.unsure))
        assert asked.unmet(places) == asked.unmet((each.component, each.kind) for each in found)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_the_file_tell_as_many_as_the_loaded_model_has(
    family: str, tmp_path: Path
) -> None:
    folder = FAMILIES[family](tmp_path / family.replace(" ", "-"))
    plan = plan_for("llama-nf4")
    plan = replace(plan, resolved=Resolved(str(folder), None, folder, "a test's model"))
    facts = read_checkpoint(folder)
    model, _ = load(plan)
    from app.engine.adapter import projections

    found, told = projections(model), find_targets(facts, load_in_4bit=True)
    for asked in FLAGS:
        assert len(told.expected(asked)) == sum(asked.requires(each) for each in found), asked


def test_the_tables_read_from_the_files_are_those_of_the_library() -> None:
    found = read_families({"model_type": "llama"})
    importlib.import_module("unsloth")  # first of the stack, or it patches nothing
    import transformers
    from transformers.models.auto import configuration_auto, modeling_auto

    assert found.version == transformers.__version__
    # What was registered while the stack was imported is no part of the files.
    assert set(configuration_auto.CONFIG_MAPPING_NAMES) == set(found.configs)
    tables: dict[str, Mapping[str, str]] = {
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": found.causal,
        "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES": found.image_text,
    }
    for name, table in tables.items():
        assert dict(getattr(modeling_auto, name)) == dict(table), name


def test_pickles_are_loaded_and_judged_like_safetensors(tmp_path: Path) -> None:
    """What is written there is what is told of it, shapes that do not fit included."""
    import torch
    from safetensors.torch import load_file

    from app.checks import load as load_checks
    from app.checks.checkpoint import CHECKS
    from app.engine import loader
    from app.errors import BootError
    from tests import broken_files
    from tests.tiny_models import tiny_model

    folder = broken_files.copy(tiny_model("llama-bf16"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    plan = replace(
        plan_for("llama-bf16"),
        allow_pickle=True,
        resolved=Resolved(str(folder), None, folder, "a test's model"),
    )
    told = findings(CHECKS, read_checkpoint(folder), plan)
    assert not [name for name, finding in told.items() if finding.status.blocks]
    assert told["checkpoint.pickles"].status is Status.PASS
    headers = read_headers(folder)
    assert {(h.name, h.shape) for h in headers.tensors} == {
        (name, tuple(tensor.shape)) for name, tensor in tensors.items()
    }
    facts = loader.load(plan, headers).facts
    assert facts.files == ("pytorch_model.bin",)
    said = findings(load_checks.CHECKS, facts, plan)
    assert {finding.status for finding in said.values()} == {Status.PASS}
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name][:-1].clone()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(BootError, match=re.escape("model.layers.1.mlp.up_proj.weight")):
        loader.load(plan, read_headers(folder))


def test_no_family_of_the_library_is_refused_for_its_own_defaults() -> None:
    """Every family that a boot may load, by the configuration that its class makes of nothing."""
    importlib.import_module("unsloth")  # first of the stack, or it patches nothing
    from huggingface_hub.errors import StrictDataclassError
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from app.checks.checkpoint import CHECKS

    plan = plan_for("llama-bf16")
    kinds = {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    judged = 0
    for kind in sorted(kinds & {*CONFIG_MAPPING}):
        try:
            config = CONFIG_MAPPING[kind]().to_dict()
        except (
            AttributeError,
            StrictDataclassError,
            TypeError,
            ValueError,
        ):  # a family that has no defaults
            continue
        config |= {"model_type": kind}
        facts = CheckpointFacts(Path(), config=config, families=read_families(config))
        told = findings(CHECKS, facts, plan)
        for name in ("checkpoint.family", "checkpoint.numbers"):
            assert told[name].status is Status.PASS, (kind, told[name].reason)
        judged += 1
    assert judged > 200
