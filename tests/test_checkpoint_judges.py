"""Judges of quantisation options and LoRA targets; and that no configuration breaks any judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checks.checkpoint import CHECKS
from app.config import ModelRequest
from app.exits import ExitCode
from app.facts.adapter import Asked
from app.facts.cache import CacheFacts
from app.facts.checkpoint import CheckpointFacts, ShardFacts, TensorHeader
from app.facts.families import Families
from app.facts.lora_targets import find_targets
from app.model_section import model_section
from app.outcome import Finding, Status
from app.plan import Plan
from app.probes.safetensors import read_checkpoint
from tests.fakes_preflight import NF4, PACKED, PLAIN, findings, model_files, plan_for, write_model
from tests.test_checkpoint import failing, judge
from tests.test_checkpoint_family import KNOWN

NAME = "checkpoint.quantization"


def quantised(folder: Path, hardware: str = "h100", **options: Any) -> Finding:
    files = model_files(PACKED, quantization=NF4 | options)
    return judge(read_checkpoint(write_model(folder, files)), hardware=hardware)[NAME]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bnb_4bit_compute_dtype": "bfloat17"}, "is no floating dtype of torch"),
        ({"bnb_4bit_compute_dtype": "torch.bfloat16"}, "is no floating dtype of torch"),
        ({"bnb_4bit_compute_dtype": "uint8"}, "is no floating dtype of torch"),
        ({"bnb_4bit_compute_dtype": 16}, "is no floating dtype of torch"),
        ({"bnb_4bit_quant_storage": "bfloat16"}, "only uint8 can be proved"),
        ({"bnb_4bit_quant_storage": ["uint8"]}, "only uint8 can be proved"),
        ({"bnb_4bit_use_double_quant": "yes"}, "must be true or false"),
        ({"llm_int8_skip_modules": "lm_head"}, "is no list of names"),
        ({"llm_int8_skip_modules": [1]}, "is no list of names"),
        ({"llm_int8_threshold": 6}, "must be like 6.0"),
    ],
)
def test_options_that_the_loader_raises_on_are_named(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    finding = quantised(tmp_path, **options)
    assert finding.status is Status.FAIL
    assert said in finding.reason
    assert next(iter(options)) in finding.reason


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ("v100", "packed as nf4; the file's compute dtype bfloat16 becomes float16 on the load"),
        ("h100", "packed as nf4"),
        ("cpu", "packed as nf4"),  # the CPU backend keeps what the file says
    ],
)
def test_a_compute_dtype_that_the_loader_overrides_is_a_note(
    tmp_path: Path, hardware: str, said: str
) -> None:
    finding = quantised(tmp_path, hardware, bnb_4bit_compute_dtype="bfloat16")
    assert finding.status is Status.PASS
    assert finding.reason.endswith(said)


@pytest.mark.parametrize(
    ("entries", "status"),
    [(["layer"], Status.WARN), (["lm_head"], Status.PASS), ([""], Status.PASS)],
)
def test_a_weight_that_is_packed_and_left_out_warns(
    tmp_path: Path, entries: list[str], status: Status
) -> None:
    assert quantised(tmp_path, llm_int8_skip_modules=entries).status is status


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"text_config": {"quantization_config": {"quant_method": "gptq"}}}, "text_config"),
        ({"compression_config": {"quant_method": "sparse"}}, "compression_config"),
    ],
)
def test_a_method_that_stands_elsewhere_is_named(
    tmp_path: Path, config: dict[str, Any], place: str
) -> None:
    facts = read_checkpoint(write_model(tmp_path, model_files()))
    found = judge(replace(facts, config={**facts.config, **config}))
    assert failing(found) == {"quantization": ExitCode.DATAERR}
    assert place in found[NAME].reason


def test_packed_bytes_of_another_type_are_named(tmp_path: Path) -> None:
    facts = read_checkpoint(write_model(tmp_path, model_files(PACKED, quantization=NF4)))
    headers = tuple(
        replace(header, dtype="BF16") if header.name == "layer.weight" else header
        for header in facts.tensors
    )
    finding = judge(replace(facts, tensors=headers))[NAME]
    assert "layer.weight is stored as BF16, and must be U8" in finding.reason


def facts_of(
    shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any] | None = None, **more: Any
) -> CheckpointFacts:
    """A checkpoint by the names and shapes of its tensors."""
    headers = tuple(
        TensorHeader(name, "BF16", shape, 2, "model.safetensors") for name, shape in shapes.items()
    )
    shard = ShardFacts("model.safetensors", 1)
    return CheckpointFacts(
        Path("/models/x"),
        config or {"model_type": "llama"},
        tensors=headers,
        shards=(shard,),
        **more,
    )


ATTENTION = {f"model.layers.0.self_attn.{each}_proj.weight": (4, 4) for each in "qkvo"}
MLP = {f"model.layers.0.mlp.{each}_proj.weight": (4, 4) for each in ("gate", "up", "down")}
TEXT = {"model.embed_tokens.weight": (8, 4), "lm_head.weight": (8, 4), **ATTENTION, **MLP}
SEES = {
    "model.visual.blocks.0.attn.qkv.weight": (4, 4),
    "model.visual.blocks.0.mlp.fc1.weight": (4, 4),
}
EXPERTS = {f"model.layers.0.mlp.experts.{n}.up_proj.weight": (4, 4) for n in range(4)}
ROUTED = {**ATTENTION, **EXPERTS, "model.layers.0.mlp.gate.weight": (4, 4)}


def asking(**flags: Any) -> Plan:
    return replace(plan_for("h100"), request=replace(ModelRequest(), **flags))


@pytest.mark.parametrize(
    ("shapes", "flags", "status", "said"),
    [
        (TEXT, {}, Status.PASS, "7 projections for LoRA by their names: attention and mlp of lang"),
        (TEXT, {"finetune_mlp_modules": False}, Status.PASS, "4 projections"),
        (TEXT, {"finetune_vision_layers": True}, Status.FAIL, "vision layers are asked for"),
        (
            TEXT,
            {"finetune_attention_modules": False, "finetune_mlp_modules": False},
            Status.FAIL, "neither attention nor MLP",
        ),
        ({**TEXT, **SEES}, {"finetune_vision_layers": True}, Status.PASS, "9 projections"),
        ({**TEXT, **SEES}, {}, Status.PASS, "7 projections"),
        (ROUTED, {}, Status.PASS, "4 projections"),
        (ROUTED, {"finetune_attention_modules": False}, Status.FAIL, "only routed experts"),
        (ATTENTION, {}, Status.FAIL, "MLP modules are asked for and the model has none"),
        # BERT's names: the layer is a language model's, the kind is not told.
        (
            {**ATTENTION, "model.layers.0.intermediate.dense.weight": (4, 4)},
            {}, Status.SKIP, "the name does not tell the kind",
        ),
        ({"a.b.weight": (4, 4)}, {}, Status.SKIP, "no layer of a language model is known"),
        # Norms and biases of two dimensions (Cohere) are no projections.
        ({**TEXT, "model.layers.0.self_attn.q_norm.weight": (4, 4)}, {}, Status.PASS, "7 proj"),
    ],
)  # fmt: skip
def test_flags_must_name_parts_of_the_model(
    shapes: Mapping[str, tuple[int, ...]], flags: dict[str, bool], status: Status, said: str
) -> None:
    found = findings(CHECKS, facts_of(shapes), asking(**flags))
    finding = found["checkpoint.lora_targets"]
    assert finding.status is status, finding
    assert said in finding.reason
    if status is Status.FAIL:
        assert failing(found)["lora_targets"] == ExitCode.CONFIG
        assert "BOOT_FINETUNE_*" in finding.next_step


def test_vision_under_unknown_names_is_not_refused() -> None:
    facts = facts_of(TEXT, {"model_type": "x", "vision_config": {"a": 1}})
    plan = asking(finetune_vision_layers=True)
    finding = findings(CHECKS, facts, plan)["checkpoint.lora_targets"]
    assert finding.status is Status.SKIP
    assert "config.json speaks of vision" in finding.reason


def test_older_releases_keep_experts_apart() -> None:
    """There they are Linears, and the request for MLP alone can be met."""
    families = replace(KNOWN, version="4.57.6")
    plan = asking(finetune_attention_modules=False)
    found = findings(CHECKS, facts_of(ROUTED, families=families), plan)
    assert found["checkpoint.lora_targets"].status is Status.PASS


def test_layers_that_share_keys_and_values_have_no_projections_of_their_own() -> None:
    second = {name.replace(".0.", ".1."): shape for name, shape in TEXT.items() if ".0." in name}
    config = {"text_config": {"num_hidden_layers": 2, "num_kv_shared_layers": 1}}
    for version, expected in (("5.17.0", 12), ("4.57.6", 14)):
        families = Families(version=version)
        targets = find_targets(
            facts_of({**TEXT, **second}, config, families=families), load_in_4bit=True
        )
        asked = Asked(vision=False, language=True, attention=True, mlp=True)
        assert len(targets.expected(asked)) == expected


def test_gpt2_is_known_once_it_is_packed() -> None:
    """Its Conv1D becomes a Linear by packing alone."""
    shapes = {"h.0.attn.c_attn.weight": (4, 12), "h.0.mlp.c_fc.weight": (4, 16)}
    facts = facts_of(shapes, {"model_type": "gpt2"})
    assert not find_targets(facts, load_in_4bit=True).problem
    assert "no Linear" in find_targets(facts, load_in_4bit=False).problem


def test_the_report_counts_the_targets(tmp_path: Path) -> None:
    cache = CacheFacts("a", "b", "folder", "why", tmp_path)
    section = model_section(asking(), cache, facts_of({**TEXT, **SEES}))
    assert section.lora_targets == {"language": {"attention": 4, "mlp": 3}}
    assert model_section(asking(), cache, facts_of({"a": (1,)})).lora_targets is None


# Keys that judges look at, so that the values below meet them.
KEYS = st.sampled_from(
    [
        *("model_type", "architectures", "auto_map", "text_config", "vision_config", "dtype"),
        *("torch_dtype", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
        *("num_key_value_heads", "max_position_embeddings", "rope_scaling", "rope_parameters"),
        *(
            "factor",
            "type",
            "rope_type",
            "original_max_position_embeddings",
            "transformers_version",
        ),
        *("quantization_config", "quant_method", "load_in_4bit", "bnb_4bit_quant_type"),
        *("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "llm_int8_skip_modules"),
        *("compression_config", "num_kv_shared_layers", "is_encoder_decoder", "intermediate_size"),
        *("do_sample", "temperature", "early_stopping", "max_new_tokens", "num_return_sequences"),
        *("num_beams", "tie_word_embeddings", "embedding_size", "num_nextn_predict_layers"),
    ]
)
WORDS = st.sampled_from(
    ["llama", "gemma3n", "bitsandbytes", "nf4", "gpt2", "yarn", "float16", "t5"]
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), WORDS,
    st.integers(-2, 3),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)
CONFIGS = st.dictionaries(KEYS | st.text(max_size=8), VALUES, max_size=10)
TENSORS = st.dictionaries(
    st.sampled_from([*TEXT, *SEES, *ROUTED, *PACKED, *PLAIN, "model.layers.99999.a.weight"])
    | st.text(max_size=12),
    st.lists(st.integers(0, 2**63), max_size=3).map(tuple),
    max_size=8,
)
ONCE = 2000  # characters: no reason may fill a page


@given(CONFIGS, CONFIGS, TENSORS, st.sampled_from(["v100", "h100", "cpu"]), st.booleans())
def test_no_configuration_breaks_a_judge(
    config: dict[str, Any],
    generation: dict[str, Any],
    tensors: dict[str, tuple[int, ...]],
    hardware: str,
    packs: bool,
) -> None:
    families = Families(
        **{name: getattr(KNOWN, name) for name in ("version", "configs", "causal", "image_text")},
        nested_by_type=frozenset({"text_config", "vision_config"}),
    )
    facts = facts_of(tensors, config, families=families, generation=generation)
    plan = plan_for(hardware, load_in_4bit=packs)
    for name, finding in findings(CHECKS, facts, plan).items():
        texts = (finding.reason, finding.expected, finding.actual, finding.next_step)
        assert all(len(text) < ONCE for text in texts[:1]), name
        assert all(text.isprintable() for text in texts), name
    section = model_section(plan, CacheFacts("a", "b", "folder", "why"), facts)
    assert section.model_dump_json()
