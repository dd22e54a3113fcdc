"""Numbered weight files that the index leaves out, and which judge says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.exits import ExitCode
from app.facts.checkpoint import CheckpointFacts
from app.facts.parts import left_out
from app.outcome import Finding, Status
from app.probes.safetensors import read_checkpoint
from tests.fakes_preflight import PLAIN, TensorsT, model_files, safetensors_bytes, write_model
from tests.test_checkpoint import failing, judge

INDEX = "model.safetensors.index.json"
LAYERS: TensorsT = {
    "model.embed_tokens.weight": ("BF16", (8, 4)),
    **{
        f"model.layers.{n}.{each}.weight": ("BF16", (4, 4))
        for n in range(4)
        for each in ("self_attn.q_proj", "mlp.up_proj")
    },
    "model.norm.weight": ("BF16", (4,)),
    "lm_head.weight": ("BF16", (8, 4)),
}
SIZES = {"num_hidden_layers": 4, "vocab_size": 8, "hidden_size": 4}


def part(number: int, total: int) -> str:
    return f"model-{number:05}-of-{total:05}.safetensors"


def unnamed(files: dict[str, bytes], *names: str, gone: bool = False) -> dict[str, bytes]:
    """The index without any entry of these files; `gone`: without the files too."""
    index = json.loads(files[INDEX])
    table = {k: v for k, v in index["weight_map"].items() if v not in names}
    kept = {k: v for k, v in files.items() if not (gone and k in names)}
    return kept | {INDEX: json.dumps(index | {"weight_map": table}).encode()}


def in_order(n_shards: int) -> dict[str, bytes]:
    """The model in parts of whole layers, as a library writes it."""
    files = sized(model_files(LAYERS))
    del files["model.safetensors"]
    names = list(LAYERS)
    table: dict[str, str] = {}
    size = -(-len(names) // n_shards)
    for number in range(n_shards):
        held = {name: LAYERS[name] for name in names[number * size :][:size]}
        table |= dict.fromkeys(held, part(number + 1, n_shards))
        files[part(number + 1, n_shards)] = safetensors_bytes(held)
    return files | {INDEX: json.dumps({"metadata": {}, "weight_map": table}).encode()}


def sized(files: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    config = json.loads(files["config.json"]) | SIZES | changes
    return files | {"config.json": json.dumps(config).encode()}


def said_of(folder: Path, files: dict[str, bytes]) -> dict[str, Finding]:
    return judge(read_checkpoint(write_model(folder, files)))


def test_a_part_of_another_total_beside_the_weights_warns(tmp_path: Path) -> None:
    files = model_files(PLAIN, n_shards=2) | {part(3, 3): safetensors_bytes(PLAIN)}
    said = said_of(tmp_path, files)
    assert failing(said) == {}
    finding = said["checkpoint.index"]
    assert finding.status is Status.WARN
    assert finding.reason.startswith(part(3, 3))
    assert "remove what is of another revision" in finding.next_step


def test_a_part_that_lost_its_only_entry_is_the_indexs_fault(tmp_path: Path) -> None:
    said = said_of(tmp_path, unnamed(model_files(PLAIN, n_shards=2), part(2, 2)))
    assert failing(said) == {"index": ExitCode.DATAERR}
    finding = said["checkpoint.index"]
    assert part(2, 2) in finding.reason
    assert part(2, 2) not in finding.next_step
    assert finding.next_step.startswith("fetch the index of the weights' own revision")


@pytest.mark.parametrize("gone", [False, True])
def test_layers_of_a_part_that_the_index_lost_are_not_config_jsons_fault(
    tmp_path: Path, gone: bool
) -> None:
    said = said_of(tmp_path, unnamed(in_order(3), part(3, 3), gone=gone))
    assert failing(said) == {"index": ExitCode.DATAERR}
    assert said["checkpoint.layers"].status is Status.SKIP
    assert "checkpoint.index says so" in said["checkpoint.layers"].reason
    step = said["checkpoint.index"].next_step
    assert step.startswith("fetch the index")
    assert (part(3, 3) in step) == gone


def one_file_of_two(lacking: str = "", **config: Any) -> dict[str, bytes]:
    """A model in the first of two numbered files, the second in neither index nor folder."""
    held = {name: entry for name, entry in LAYERS.items() if name != lacking}
    files = sized(model_files(held), **config)
    files[part(1, 2)] = files.pop("model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(held, part(1, 2))}
    return files | {INDEX: json.dumps(index).encode()}


@pytest.mark.parametrize("lacking", [*LAYERS])
def test_a_part_that_is_nowhere_fails_where_the_model_is_not_whole(
    tmp_path: Path, lacking: str
) -> None:
    finding = said_of(tmp_path, one_file_of_two(lacking))["checkpoint.index"]
    assert finding.status is Status.FAIL
    assert f"and {part(2, 2)} of the weights' own revision" in finding.next_step


@pytest.mark.parametrize("lacking", ["", "lm_head.weight"])
def test_a_part_that_was_taken_out_of_a_whole_model_warns(tmp_path: Path, lacking: str) -> None:
    """As those who strip a head for further tokens do: files keep their numbers."""
    said = said_of(tmp_path, one_file_of_two(lacking, tie_word_embeddings=bool(lacking)))
    assert failing(said) == {}
    assert said["checkpoint.index"].status is Status.WARN
    assert part(2, 2) in said["checkpoint.index"].reason
    assert said["checkpoint.layers"].status is Status.PASS


def test_tensors_of_a_named_file_that_the_index_lacks_are_what_is_expected(tmp_path: Path) -> None:
    files = model_files(PLAIN, n_shards=2)
    more = safetensors_bytes({"norm.weight": ("BF16", (4,)), "more": ("F32", (1,))})
    finding = said_of(tmp_path, files | {part(2, 2): more})["checkpoint.index"]
    assert finding.expected == "every tensor of the files in the index"
    assert finding.actual == "not in the index: more"


def test_a_sentence_about_layers_is_not_cut_by_the_number_of_others(tmp_path: Path) -> None:
    finding = said_of(tmp_path, sized(model_files(LAYERS), num_hidden_layers=11, vocab_size=99))[
        "checkpoint.layers"
    ]
    assert finding.status is Status.FAIL
    assert finding.reason.endswith(
        "none of number 4, 5, 6, 7, 8 and 2 more, so that these layers would be random numbers "
        "(and 1 more problem of layers and sizes)"
    )


@pytest.mark.parametrize(
    ("named", "there", "here", "gone"),
    [
        ((part(1, 2), part(2, 2)), (), (), ()),
        # From 0, to the total or to one below it: both are complete.
        ((part(0, 2), part(1, 2), part(2, 2)), (), (), ()),
        ((part(0, 2), part(1, 2)), (), (), ()),
        ((part(0, 2), part(1, 2)), (part(2, 2),), (part(2, 2),), ()),
        ((part(1, 2), part(2, 2)), (part(0, 2),), (part(0, 2),), ()),
        # Digits need not be of one width.
        (("m-1-of-003.safetensors", "m-3-of-003.safetensors"), (), (), ("m-2-of-003.safetensors",)),
        # Two names may share the numbers.
        (("a-00001-of-00002.safetensors", "b-00002-of-00002.safetensors"), (), (), ()),
        (("weights.safetensors",), (part(1, 2),), (), ()),
        ((part(1, 99_999),), (), (), ()),
        ((part(1, 1),), ("consolidated-00001-of-00001.safetensors",), (), ()),
    ],
)
def test_numbers_are_counted_as_the_names_count(
    named: tuple[str, ...], there: tuple[str, ...], here: tuple[str, ...], gone: tuple[str, ...]
) -> None:
    index = {f"t{n}": name for n, name in enumerate(named)}
    found = left_out(CheckpointFacts(Path("/m"), index=index, spare_weights=there))
    assert (found.here, found.gone, found.others) == (here, gone, ())
