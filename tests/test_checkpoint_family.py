"""The model's family, its numbers, and what the folder is instead of a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.exits import ExitCode
from app.facts.families import Families
from app.outcome import Finding, Status
from app.probes import model_types
from app.probes.safetensors import read_checkpoint
from tests.fakes_preflight import PLAIN, model_files, write_model
from tests.test_checkpoint import failing, judge, without

KNOWN = Families(
    version="5.17.0",
    configs={
        "llama": "LlamaConfig",
        "llava": "LlavaConfig",
        "t5": "T5Config",
        "clip": "CLIPConfig",
    },
    causal={"llama": "LlamaForCausalLM"},
    image_text={"llava": "LlavaForConditionalGeneration"},
    other={"t5": "T5ForConditionalGeneration"},
    nested_by_type=frozenset({"text_config"}),
    activations=frozenset({"silu"}),
)


def said_of(
    folder: Path, config: dict[str, Any], hardware: str = "h100", **request: Any
) -> dict[str, Finding]:
    files = model_files() | {"config.json": json.dumps(config).encode()}
    facts = read_checkpoint(write_model(folder, files))
    return judge(replace(facts, families=KNOWN), hardware=hardware, **request)


@pytest.mark.parametrize(
    ("config", "hardware", "status", "said"),
    [
        ({"model_type": "llama"}, "h100", Status.PASS, "transformers 5.17.0 knows llama"),
        ({"model_type": "lama"}, "h100", Status.FAIL, "spelt almost so: llama"),
        ({"model_type": "qqq9"}, "h100", Status.FAIL, "does not know the model_type qqq9"),
        ({"model_type": "x\n\x1b"}, "h100", Status.FAIL, r"x\u000a\u001b"),
        (
            {"model_type": "qqq9", "auto_map": {"AutoConfig": "a.B"}},
            "h100", Status.FAIL, "needs code from the model's repository",
        ),
        (
            {"model_type": "llama", "auto_map": {"AutoConfig": "a.B"}},
            "h100", Status.PASS, "by its own code",
        ),
        (
            {"model_type": "llava", "text_config": {"model_type": "llamax"}},
            "h100", Status.FAIL, "text_config.model_type llamax",
        ),
        # Its class is not looked up by that name.
        ({"model_type": "llava", "vision_config": {"model_type": "y"}}, "h100", Status.PASS, ""),
        ({"model_type": "llama", "architectures": "Llama"}, "h100", Status.FAIL, "no list"),
        ({"model_type": "llama", "architectures": [1]}, "h100", Status.FAIL, "no list"),
        (
            {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
            "h100", Status.WARN, "LlamaForCausalLM is loaded",
        ),
        ({"model_type": "t5"}, "h100", Status.WARN, "never tried"),
    ],
)  # fmt: skip
def test_a_family_is_known_or_named(
    tmp_path: Path, config: dict[str, Any], hardware: str, status: Status, said: str
) -> None:
    finding = said_of(tmp_path, config, hardware)["checkpoint.family"]
    assert finding.status is status
    assert said in finding.reason


@pytest.mark.parametrize(("kind", "hardware"), [("t5", "cpu"), ("clip", "cpu"), ("clip", "v100")])
def test_a_family_that_predicts_no_text_is_a_setting(
    tmp_path: Path, kind: str, hardware: str
) -> None:
    said = said_of(tmp_path, {"model_type": kind}, hardware)
    assert failing(said) == {"family": ExitCode.CONFIG}
    assert "BOOT_BASE_MODEL_ID" in said["checkpoint.family"].next_step


def test_a_newer_model_says_which_transformers_wrote_it(tmp_path: Path) -> None:
    config = {"model_type": "llama9", "transformers_version": "6.1.0"}
    finding = said_of(tmp_path, config)["checkpoint.family"]
    assert finding.actual == "model_type llama9, and was written by 6.1.0"
    assert "an image whose transformers is new enough" in finding.next_step


@pytest.mark.parametrize("families", [None, Families(), Families(configs={"llama": "L"})])
def test_tables_that_cannot_be_read_refuse_nothing(
    tmp_path: Path, families: Families | None
) -> None:
    files = model_files() | {"config.json": b'{"model_type": "anything"}'}
    facts = read_checkpoint(write_model(tmp_path, files))
    finding = judge(replace(facts, families=families))["checkpoint.family"]
    assert finding.status is Status.SKIP


def test_the_installed_families_are_read_without_an_import(tmp_path: Path) -> None:
    """The guard of these tests fails one that imports transformers."""
    config = json.dumps({"model_type": "gemma3n", "text_config": {"a": 1}}).encode()
    facts = read_checkpoint(write_model(tmp_path, model_files() | {"config.json": config}))
    found = facts.families
    assert found is not None
    assert found.knows("gemma3n")
    assert found.near("gema3n")[0] == "gemma3n"
    assert found.causal["llama"] == "LlamaForCausalLM"
    assert found.image_text["llava"] == "LlavaForConditionalGeneration"
    assert "t5" in found.other


OLD = """
from collections import OrderedDict
CONFIG_MAPPING_NAMES = OrderedDict[str, str](
    [
        # a comment
        ("llama", "LlamaConfig"),
        (
            "long-name",
            "LongConfig",
        ),
    ]
)


MODEL_NAMES_MAPPING = OrderedDict[str, str]([("x", "Y")])
"""
MODELS = """
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict(
    [("llama", "LlamaForCausalLM")]
)
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.update({"odd": "OddForCausalLM"})
MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES = OrderedDict(
    [
        ("a", ("A", "B")),  # first of two
    ]
)
"""


def test_tables_of_other_releases_are_read_too(tmp_path: Path) -> None:
    auto = tmp_path / "transformers" / "models" / "auto"
    auto.mkdir(parents=True)
    (auto / "configuration_auto.py").write_text(OLD)
    (auto / "modeling_auto.py").write_text(MODELS)
    table = 'ACT2CLS = {\n    "silu": nn.SiLU,\n    "gelu_10": (G, {"min": -10}),\n}\n"x": 1\n'
    (tmp_path / "transformers" / "activations.py").write_text("\n" + table)
    (tmp_path / "transformers" / "__init__.py").write_text('\n__version__ = "4.57.6"\n')
    found = model_types.families_in(tmp_path / "transformers", {"model_type": "llama"})
    assert found.configs == {"llama": "LlamaConfig", "long-name": "LongConfig"}
    assert found.causal == {"llama": "LlamaForCausalLM", "odd": "OddForCausalLM"}
    assert found.image_text == {"a": "A"}
    assert found.activations == {"silu", "gelu_10"}
    assert (found.version, found.fuses) == ("4.57.6", False)


def test_a_transformers_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert model_types.families_in(tmp_path, {"model_type": "llama"}) == Families()


LLAMA = {
    "model_type": "llama", "hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 2, "vocab_size": 8, "intermediate_size": 8, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": -4}, "hidden_size is -4"),
        ({"hidden_size": "4"}, "hidden_size is '4', and must be a whole number"),
        ({"hidden_size": 4.0}, "hidden_size is 4.0, and must"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": {"a": 1}}, "vocab_size is {'a': 1}"),
        ({"max_position_embeddings": "x"}, "max_position_embeddings is 'x'"),
        ({"dtype": "bfloat17"}, "dtype 'bfloat17' is no dtype of torch"),
        ({"torch_dtype": "torch.float16"}, "torch_dtype 'torch.float16' is no dtype"),
        ({"dtype": "auto"}, "dtype 'auto' is no dtype"),
        ({"text_config": {"hidden_size": 0}}, "text_config.hidden_size is 0"),
        ({"num_key_value_heads": "1"}, "num_key_value_heads is '1', and must be a whole number"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is the text '1e-5', and must be a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"tie_word_embeddings": "false"}, "is the text 'false', and must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id is the text '</s>', and must be the number of a"),
        ({"hidden_act": "sillu"}, "hidden_act 'sillu' is no function that transformers has"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear', and must be an object"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling is of the type yarn and lacks factor"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "llama3", "factor": 8.0}}},
            "of the type llama3 and lacks low_freq_factor, high_freq_factor",
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, ""),
        ({"rope_scaling": {"type": ["x"]}, "hidden_act": "silu", "rms_norm_eps": 1}, ""),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, ""),
        ({"intermediate_size": [8, 8]}, ""),
        ({"intermediate_size": None, "head_dim": None}, ""),
        ({"dtype": "float16"}, ""),
        ({"dtype": None}, ""),
        ({}, ""),
    ],
)
def test_numbers_that_no_loader_survives_are_named(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    found = said_of(tmp_path, LLAMA | change)
    assert failing(found).get("numbers") == (ExitCode.DATAERR if said else None)
    assert said in found["checkpoint.numbers"].reason


@pytest.mark.parametrize(
    ("heads", "groups", "rows", "said"),
    [
        (4, 3, 4, "no multiple of num_key_value_heads 3"),
        (4, 0, 4, "no multiple of num_key_value_heads 0"),
        (0, 0, 4, "num_attention_heads is 0, and the weights have attention"),
        (3, 3, 4, "hidden size 4 is no multiple of 3 attention heads"),
        (3, 3, 6, ""),  # heads with a size of their own
        (4, 2, 4, ""),
    ],
)
def test_heads_and_their_groups_are_judged_with_the_weights(
    tmp_path: Path, heads: int, groups: int, rows: int, said: str
) -> None:
    config = LLAMA | {"num_attention_heads": heads, "num_key_value_heads": groups}
    attention = {
        f"model.layers.{n}.self_attn.{each}_proj.weight": ("BF16", (rows, 4))
        for n in range(2)
        for each in "qk"
    }
    files = model_files(attention) | {"config.json": json.dumps(config).encode()}
    found = judge(read_checkpoint(write_model(tmp_path, files)))
    assert ("numbers" in failing(found)) == bool(said)
    assert said in found["checkpoint.numbers"].reason


def layered(n_layers: int, rows: int = 8, columns: int = 4) -> dict[str, Any]:
    names = [f"model.layers.{n}.self_attn.q_proj.weight" for n in range(n_layers)]
    return {
        "model.embed_tokens.weight": ("BF16", (rows, columns)),
        **dict.fromkeys(names, ("BF16", (4, 4))),
    }


def mixed(*numbers: int) -> dict[str, Any]:
    """Four layers, of which these have an MLP too."""
    names = [f"model.layers.{n}.mlp.up_proj.weight" for n in numbers]
    return layered(4) | dict.fromkeys(names, ("BF16", (8, 4)))


GAP, FIRST = mixed(0, 1, 3), mixed(1, 2, 3)
SECOND_MLP = {"model.layers.1.mlp.up_proj.weight": ("BF16", (8, 4))}
SECOND_NORM = {"model.layers.1.attn_norm.weight": ("BF16", (4,))}
DENSE = {"model.layers.0.mlp.fc1.weight": ("BF16", (4, 4))}
PREDICTS = {"model.layers.2.eh_proj.weight": ("BF16", (4, 8))}


@pytest.mark.parametrize(
    ("tensors", "change", "status", "said"),
    [
        (layered(2), {}, Status.PASS, "2 layers, embeddings [8, 4]"),
        (layered(2), {"num_hidden_layers": 5}, Status.FAIL, "none of number 2, 3, 4"),
        (layered(2), {"num_hidden_layers": 4}, Status.FAIL, "none of number 2, 3"),
        # LongCat Flash counts every layer twice, and tells their number too.
        (layered(2), {"num_hidden_layers": 4, "num_layers": 2}, Status.PASS, "2 layers"),
        (layered(4), {}, Status.FAIL, "says 2 layers, and the weights have 4"),
        (GAP, {"num_hidden_layers": 4}, Status.FAIL, "lack model.layers.2.mlp.up_proj.weight, whi"),
        # Families whose layers are of several kinds.
        (GAP, {"num_hidden_layers": 4, "layer_types": [*"aaba"]}, Status.PASS, ""),
        (GAP, {"num_hidden_layers": 4, "layer_types": [*"abab"]}, Status.FAIL, "layers.2.mlp"),
        (FIRST, {"num_hidden_layers": 4, "first_k_dense_replace_moe": 1}, Status.PASS, ""),
        (FIRST, {"num_hidden_layers": 4}, Status.FAIL, "lack model.layers.0.mlp.up_proj.weight"),
        # A layer of another kind, without a word of it in config.json: DeepSeek's first.
        (FIRST | DENSE, {"num_hidden_layers": 4}, Status.PASS, ""),
        (layered(2) | SECOND_MLP, {}, Status.FAIL, "lack model.layers.0.mlp.up_proj.weight"),
        # ModernBERT's first layer has a norm less.
        (layered(2) | SECOND_NORM, {}, Status.PASS, ""),
        (layered(3), {}, Status.FAIL, "weights have 3"),
        # A layer that predicts further tokens has a projection for that.
        (layered(3) | PREDICTS, {}, Status.WARN, "weights have 3"),
        (layered(3), {"num_nextn_predict_layers": 1}, Status.PASS, ""),
        (layered(2, rows=7), {}, Status.FAIL, "says 8 tokens, and the embeddings have 7"),
        (layered(2, rows=64), {}, Status.FAIL, "says 8 tokens, and the embeddings have 64"),
        (layered(2, rows=16), {}, Status.PASS, ""),  # Mllama adds 8
        (layered(2, columns=5), {}, Status.FAIL, "says 4 hidden units, the embeddings have 5"),
        (layered(2, columns=5), {"word_embed_proj_dim": 5}, Status.PASS, ""),
        (layered(4), {"is_encoder_decoder": True}, Status.PASS, "embeddings [8, 4]"),
        ({"a.b.weight": ("BF16", (4, 4))}, {}, Status.SKIP, "neither layers nor embeddings"),
        # A tower's layers are not the language model's.
        (
            {**layered(2), "vision_tower.layers.7.self_attn.q_proj.weight": ("BF16", (4, 4))},
            {}, Status.PASS, "2 layers",
        ),
        (layered(2), {"text_config": {"num_hidden_layers": 3}}, Status.FAIL, "number 2"),
    ],
)  # fmt: skip
def test_config_and_weights_must_be_of_one_size(
    tmp_path: Path, tensors: Any, change: dict[str, Any], status: Status, said: str
) -> None:
    files = model_files(tensors) | {"config.json": json.dumps(LLAMA | change).encode()}
    finding = judge(read_checkpoint(write_model(tmp_path, files)))["checkpoint.layers"]
    assert finding.status is status
    assert said in finding.reason


YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({}, Status.WARN, "context of 64 tokens: positions beyond"),
        ({"max_position_embeddings": 4096}, Status.PASS, "fit the model's context of 4096"),
        ({"rope_scaling": YARN}, Status.WARN, "context of 128 tokens"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 64}}, Status.PASS, ""),
        ({"rope_scaling": {"rope_type": "default", "factor": 64}}, Status.WARN, "of 64 tokens"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e300}}, Status.WARN, "of 64 tokens"),
        ({"text_config": {"max_position_embeddings": 8192}}, Status.PASS, "of 8192"),
        ({"max_position_embeddings": None}, Status.SKIP, "no longest context"),
    ],
)  # fmt: skip
def test_longer_texts_than_the_model_was_trained_for_warn(
    tmp_path: Path, change: dict[str, Any], status: Status, said: str
) -> None:
    finding = said_of(tmp_path, LLAMA | change)["checkpoint.context"]
    assert finding.status is status
    assert said in finding.reason
    assert ("scaling by" in finding.expected) == ("factor" in str(change) and "of 64" not in said)


def test_a_learned_table_of_positions_ends_the_run(tmp_path: Path) -> None:
    files = model_files({**PLAIN, "transformer.wpe.weight": ("BF16", (64, 4))})
    files["config.json"] = b'{"model_type": "gpt2", "n_positions": 64}'
    finding = judge(read_checkpoint(write_model(tmp_path, files)))["checkpoint.context"]
    assert "a learned table, and a longer text ends the run" in finding.reason


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.9}, Status.PASS, ""),
        ({"temperature": 1.0, "top_k": 50}, Status.PASS, ""),
        ({"do_sample": False, "temperature": 0.7}, Status.WARN, "sets temperature=0.7 without"),
        ({"top_p": 0.9, "top_k": 64}, Status.WARN, "sets top_p=0.9, top_k=64 without"),
        ({"max_new_tokens": 0}, Status.FAIL, "max_new_tokens is 0"),
        ({"early_stopping": "soon"}, Status.FAIL, "early_stopping is 'soon'"),
        ({"early_stopping": []}, Status.FAIL, "early_stopping is []"),
        ({"pad_token_id": "<pad>"}, Status.FAIL, "pad_token_id is '<pad>', and must be the number"),
        ({"eos_token_id": [1, "x"]}, Status.FAIL, "eos_token_id is [1, 'x']"),
        ({"eos_token_id": [1, 2], "bos_token_id": None}, Status.PASS, ""),
        ({"cache_implementation": "hybird"}, Status.FAIL, "'hybird', which is none"),
        ({"cache_implementation": "hybrid"}, Status.PASS, ""),
        ({"num_return_sequences": 4}, Status.FAIL, "num_return_sequences is 4"),
        ({"num_return_sequences": 4, "do_sample": True}, Status.PASS, ""),
        ({"num_return_sequences": 4, "num_beams": 4}, Status.PASS, ""),
        ({}, Status.SKIP, "no generation_config.json"),
    ],
)
def test_generation_options_must_load_and_be_saved_again(
    tmp_path: Path, content: dict[str, Any], status: Status, said: str
) -> None:
    files = model_files() | {"generation_config.json": json.dumps(content).encode()}
    finding = judge(read_checkpoint(write_model(tmp_path, files)))["checkpoint.generation"]
    assert finding.status is status
    assert said in finding.reason


@pytest.mark.parametrize(
    ("files", "said", "step"),
    [
        ({"model-q4.gguf": b"GGUF"}, "in GGUF, which cannot be trained", "safetensors form"),
        ({"model_index.json": b"{}"}, "a diffusion pipeline", "name a language model"),
        (
            {"params.json": b"{}", "consolidated.safetensors": b""},
            "in its maker's own layout", "converted for transformers",
        ),
        ({"adapter_config.json": b"{}"}, "a LoRA adapter", "adapter's base model"),
        ({"adapter_config.json": b'{"base_model_name_or_path": "a/b"}'}, "a LoRA", "model (a/b)"),
        ({"Config.json": b"{}"}, "the folder has Config.json", "rename Config.json to config.js"),
        ({"README.md": b"hello"}, "config.json: No such file", "fetch config.json"),
        # A config.json that is there and broken is what is to be said.
        ({"config.json": b"<html>", "a.gguf": b""}, "HTML", "delete config.json"),
    ],
)  # fmt: skip
def test_a_folder_that_is_something_else_is_named(
    tmp_path: Path, files: dict[str, bytes], said: str, step: str
) -> None:
    found = judge(read_checkpoint(write_model(tmp_path, files)))
    assert failing(found)["config"] == ExitCode.DATAERR
    finding = found["checkpoint.config"]
    assert said in finding.reason
    assert step in finding.next_step


def test_a_model_one_folder_deeper_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "model", model_files())
    finding = judge(read_checkpoint(tmp_path))["checkpoint.config"]
    assert finding.reason == "the model is one folder deeper: model"
    assert finding.next_step == f"set BOOT_BASE_MODEL_ID to {tmp_path / 'model'}"
    write_model(tmp_path / "other", model_files())
    finding = judge(read_checkpoint(tmp_path))["checkpoint.config"]
    assert "one of model, other in" in finding.next_step


def test_a_repositorys_folder_in_the_cache_holds_its_models_in_snapshots(tmp_path: Path) -> None:
    write_model(tmp_path / "snapshots" / "abc", model_files())
    finding = judge(read_checkpoint(tmp_path))["checkpoint.config"]
    assert finding.next_step == f"set BOOT_BASE_MODEL_ID to {tmp_path / 'snapshots' / 'abc'}"


def test_a_folder_that_is_no_model_is_told_once(tmp_path: Path) -> None:
    """That an adapter has no weights of a model and no tokenizer would only mislead."""
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}
    found = judge(read_checkpoint(write_model(tmp_path, files)))
    assert failing(found) == {"config": ExitCode.DATAERR}
    assert found["checkpoint.shards"].status is Status.SKIP


BARE = without(model_files(), "model.safetensors")


@pytest.mark.parametrize(
    ("files", "said", "step"),
    [
        (
            {"model-00001-of-00002.safetensors": b"", "model-00002-of-00002.safetensors": b""},
            "parts without their model.safetensors.index.json", "fetch model.safetensors.index",
        ),
        ({"consolidated.safetensors": b""}, "is no name that it looks for", "rename the file"),
        ({"model.safetensors.part": b""}, "a download that was not finished", "finish the"),
        ({"global_step10": b""}, "the state of a training run, split", "zero_to_fp32.py"),
        ({"__0_0.distcp": b""}, "the state of a training run, split", "gather it into"),
        ({"model.fp16.safetensors": b""}, "is no name that it looks for", "rename the file"),
        ({"tf_model.h5": b""}, "tf_model.h5 is of another library", "safetensors form"),
        ({"model.gguf": b""}, "model.gguf is of another library", "safetensors form"),
        ({}, "no weights that a loader would open", "name a model folder"),
    ],
)  # fmt: skip
def test_weights_that_no_loader_opens_are_named(
    tmp_path: Path, files: dict[str, bytes], said: str, step: str
) -> None:
    found = judge(read_checkpoint(write_model(tmp_path, BARE | files)))
    assert failing(found)["shards"] == ExitCode.DATAERR
    finding = found["checkpoint.shards"]
    assert said in finding.reason
    assert step in finding.next_step
