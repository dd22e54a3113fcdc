"""Judges of the weight files: which are there, whole, agreeing with the index, of which dtypes."""

from __future__ import annotations

import re
from collections import Counter

from app.checks._folder import something_else
from app.checks._parts import index_parts
from app.checks._pickles import absent_from, convert_step, without_safetensors
from app.checks._unreadable import fault_in, step_for
from app.facts.checkpoint import STATE, CheckpointFacts, TensorHeader
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, passed, skipped, warned
from app.plan import Plan

# Dtypes of safetensors that transformers loads into a model of the contract.
_FLOATS = frozenset({"F32", "F16", "BF16"})
# Packed weights with what stands beside them, masks and counters; no weight is one otherwise.
_INTEGERS = frozenset({"U8", "I8", "I16", "I32", "I64", "BOOL"})
_WEIGHTS = "*.safetensors whose headers are valid and cover their files exactly"
# Weights of other libraries: llama.cpp, JAX, TensorFlow, ONNX.
_FOREIGN = (".gguf", ".ggml", ".msgpack", ".h5", ".onnx", ".npz")
_INDEXED = "every tensor of the index in the file that the index names"
_AGAIN = "fetch index and weights of one revision again"
_BARE = "save the model itself again (save_pretrained of the unwrapped module)"
# By what a library puts into every name, in whole segments of it.
_WRAPPERS = (
    (
        re.compile(r"^base_model\.model\.|\.(?:base_layer|original_module|lora_[AB])\."),
        "PEFT",
        "merge the adapter (merge_and_unload) and save the model again with save_pretrained",
    ),
    (re.compile(r"(?:^|\.)_orig_mod\."), "torch.compile", _BARE),
    (re.compile(r"(?:^|\.)_fsdp_wrapped_module\."), "FSDP", _BARE),
    (re.compile(r"^(?:module|_forward_module)\."), "a trainer's wrapper", _BARE),
)
# Texts of which each of these has one: all names at once are searched faster for them.
_MARKS = ("module.", "_orig_mod.", "base_model.", "base_layer.", ".lora_")
# Names of a file that is being fetched, by huggingface_hub, browsers, wget, curl, aria2 and rsync.
_UNFINISHED = re.compile(
    r"(?i)\.(?:incomplete|part|partial|tmp|crdownload|download|aria2|filepart)\Z"
)
# Folders that DeepSpeed, FSDP and torch.distributed.checkpoint leave.
_SPLIT = re.compile(r"^(?:global_step\d+|pytorch_model_fsdp_\d+)\Z|\.distcp\Z")
_PART = re.compile(r"-\d{5}-of-\d{5}\.")


def index(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """Index and files must agree; a tensor that is only promised gets random values."""
    if facts.index_problem:
        return failed(
            facts.index_problem,
            expected=_INDEXED,
            actual=facts.index_problem,
            next_step=step_for(facts, {"the index": facts.index_problem}),
            fault=fault_in(facts, ["the index"]),
        )
    if facts.unused_index:
        return warned(
            f"{facts.unused_index} is not read: model.safetensors comes first",
            expected="one of the two",
            actual="both",
            next_step="remove the one that is not meant",
        )
    if not facts.index:
        return skipped("the weights are one file, without an index")
    return (
        _absent(facts)
        or index_parts(facts)
        or _unlisted(facts)
        or passed(f"{len(facts.index)} tensors in {len(facts.shards)} files", expected=_INDEXED)
    )


def _absent(facts: CheckpointFacts) -> Finding | None:
    """Tensors that the index promises, and that their whole file does not hold."""
    absent = absent_from(facts.index, facts.shards, facts.tensors)
    if not absent:
        return None
    return failed(
        f"{len(absent)} tensor(s) of the index are not in their file: {listed(absent, 3)}",
        expected=_INDEXED,
        actual=listed(absent),
        next_step=_AGAIN,
    )


def _unlisted(facts: CheckpointFacts) -> Finding | None:
    """Tensors of files that are read, which the index does not know."""
    unlisted = [header.name for header in facts.tensors if header.name not in facts.index]
    if not unlisted:
        return None
    return warned(
        f"{len(unlisted)} tensor(s) of the files are not in the index: {listed(unlisted, 3)}",
        expected="every tensor of the files in the index",
        actual=f"not in the index: {listed(unlisted)}",
        next_step=_AGAIN,
    )


def shards(facts: CheckpointFacts, plan: Plan) -> Finding:
    """Every weight file is there, whole, and what its header says."""
    expected = _WEIGHTS
    bad = [shard for shard in facts.shards if shard.problem]
    if bad:
        told = [f"{one_line(shard.name)}: {shard.problem}" for shard in bad]
        return failed(
            listed(told, 1),
            expected=expected,
            actual=listed(told, between="; "),
            next_step=step_for(facts, {shard.name: shard.problem for shard in bad}),
            fault=fault_in(facts, [shard.name for shard in bad]),
        )
    if facts.shards:
        n_bytes = sum(shard.n_bytes for shard in facts.shards)
        return passed(f"{len(facts.shards)} file(s), {n_bytes:,} bytes", expected=expected)
    if facts.index_problem:
        return skipped("the index could not be read")
    if facts.config_problem and something_else(facts) is not None:
        return skipped("the folder is no model of transformers: checkpoint.config says what it is")
    return without_safetensors(facts, plan) or _no_weights(facts)


def _no_weights(facts: CheckpointFacts) -> Finding:
    """What lies there in place of weights, and what to do about it."""
    spare = [*facts.pickles, *facts.spare_weights]
    foreign = [name for name in facts.other_files if name.lower().endswith(_FOREIGN)]
    why, step = "", "name a model folder with model.safetensors or its index"
    parts = [name for name in spare if _PART.search(name)]
    if facts.spare_weights and parts and not facts.pickles:
        why = ": parts without their model.safetensors.index.json"
        step = "fetch model.safetensors.index.json of the same revision too"
    elif facts.pickles:
        why = ": they are pickles"
        step = convert_step(facts)
    elif cut := [name for name in facts.other_files if _UNFINISHED.search(name)]:
        why = f": {listed(cut, 2)} is a download that was not finished"
        step = "finish the download, or fetch the weights again from the model's source"
    elif split := [name for name in facts.other_files if _SPLIT.search(name)]:
        why = f": {listed(split, 2)} is the state of a training run, split over its processes"
        step = (
            "gather it into safetensors first (zero_to_fp32.py for DeepSpeed, merge-weights of "
            "accelerate for FSDP)"
        )
    elif facts.spare_weights:
        why = f": {listed(facts.spare_weights, 2)} is no name that it looks for"
        step = (
            "name the form of the model that transformers saved (model.safetensors), or rename "
            "the file if it is that"
        )
    elif foreign:
        why = f": {listed(foreign, 2)} is of another library"
        step = "name the safetensors form of the model"
    return failed(
        f"the folder has no weights that a loader would open{why}",
        expected=_WEIGHTS,
        actual=listed([*spare, *foreign]) or "no weight file",
        next_step=step,
    )


def tensors(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """A tensor in two files has two values, and which one wins is chance."""
    if not facts.tensors:
        return skipped("no tensor could be read")
    twice = [name for name, n in Counter(h.name for h in facts.tensors).items() if n > 1]
    expected = "every tensor in one file only, under the name that the model gives it"
    wrapped = _wrapped(facts)
    if wrapped:
        who, names, step = wrapped
        return failed(
            f"{len(names)} tensor(s) have the name that {who} gave them, and a loader finds none "
            f"of them: {listed(names, 2)}",
            expected=expected,
            actual=listed(names),
            next_step=step,
        )
    if twice:
        return failed(
            f"{len(twice)} tensor(s) are in more than one file: {listed(twice, 3)}",
            expected=expected,
            actual=listed(twice),
            next_step="fetch all weight files of one revision again",
        )
    return passed(
        f"{len(facts.tensors)} tensors, {len(facts.packed)} of them packed", expected=expected
    )


def _wrapped(facts: CheckpointFacts) -> tuple[str, list[str], str] | None:
    """Names that what stood around the model in training has left: who, which, the way out."""
    # Once over all of them is enough where there is nothing to find.
    names = "\n".join(header.name for header in facts.tensors)
    for mark, who, step in _WRAPPERS if any(text in names for text in _MARKS) else ():
        found = [header.name for header in facts.tensors if mark.search(header.name)]
        if found:
            return who, found, step
    return None


def _computes(header: TensorHeader, packed: set[str]) -> bool:
    """Whether the dtype is one for this tensor."""
    if header.dtype not in _INTEGERS:
        return header.dtype in _FLOATS
    name = header.name
    if name in packed or STATE in name:
        return True
    # GPT-2 and GPT-NeoX keep their causal mask, of four dimensions, as `attention.bias`.
    return not name.endswith(".weight") and not (name.endswith(".bias") and len(header.shape) == 1)


def dtypes(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """By the file's own names; what the model becomes is judged after the load."""
    if not facts.tensors:
        return skipped("no tensor could be read")
    counts = Counter(header.dtype for header in facts.tensors)
    packed = set(facts.packed)
    odd = [f"{h.name} ({h.dtype})" for h in facts.tensors if not _computes(h, packed)]
    expected = f"weights and biases of {', '.join(sorted(_FLOATS))}, or packed"
    actual = ", ".join(f"{dtype} {n}" for dtype, n in sorted(counts.items()))
    if odd:
        return failed(
            f"{len(odd)} tensor(s) of a dtype that no profile computes in: {listed(odd, 3)}",
            expected=expected,
            actual=actual,
            next_step="save the weights in bfloat16, float16 or float32",
        )
    return passed(actual, expected=expected, actual=actual)
