"""Judges of the checkpoint stage: is the folder a model that this boot can load and prove."""

from __future__ import annotations

from app.checks import Check
from app.checks._context import context, generation
from app.checks._family import family
from app.checks._files import dtypes, index, shards, tensors
from app.checks._folder import config
from app.checks._layers import layers
from app.checks._lora import lora_targets
from app.checks._numbers import numbers
from app.checks._packing import quantization
from app.checks._pickles import pickles
from app.checks._tokenizer import tokenizer, vocabulary
from app.facts.checkpoint import CheckpointFacts
from app.outcome import Fault, Severity

_AGAIN = "Fetch the files of one revision again: delete them first, and check the free disk space."

CHECKS: tuple[Check[CheckpointFacts], ...] = (
    Check(
        "checkpoint.config",
        Fault.DATA_INVALID,
        "config.json",
        config,
        cause="The folder is a LoRA adapter, a GGUF or diffusers download, one level too high, or "
        "config.json is missing, empty, or a web page that was saved in its place.",
        fix="Name the folder that holds config.json, tokenizer and *.safetensors of one model.",
    ),
    Check(
        "checkpoint.family",
        Fault.DATA_INVALID,
        "the tables of the installed transformers (models/auto)",
        family,
        cause="The model is newer than the image's transformers, its model_type is misspelt, it "
        "needs code from its repository, or it is no language model at all.",
        fix="Use an image with a transformers that knows the family, correct model_type in "
        "config.json, or name another model.",
    ),
    Check(
        "checkpoint.numbers",
        Fault.DATA_INVALID,
        "config.json, and how transformers 5.17 reads it",
        numbers,
        cause="config.json was edited by hand or by a script: a number became a text or a "
        "fraction, heads no longer divide the hidden size, a dtype or an activation is misspelt, "
        "or the scaling of positions lacks its factor.",
        fix="Fetch config.json of the same revision again, or correct the entry that is named.",
    ),
    Check(
        "checkpoint.context",
        Fault.CONFIG,
        "config.json: the longest context, scaled by its rope settings",
        context,
        severity=Severity.WARNING,
        cause="BOOT_MAX_SEQ_LENGTH is larger than the context that the model was trained for.",
        fix="Lower BOOT_MAX_SEQ_LENGTH, or name a model with a longer context.",
    ),
    Check(
        "checkpoint.index",
        Fault.DATA_INVALID,
        "model.safetensors.index.json",
        index,
        cause="Index and weight files are of two revisions, a download was cut short, or the index "
        "was edited and leaves out a numbered file.",
        fix=_AGAIN,
    ),
    Check(
        "checkpoint.pickles",
        Fault.DATA_INVALID,
        "the instructions of the pickle, read and not run",
        pickles,
        cause="The weights are in pytorch_model.bin, whose reading runs whatever is written in it.",
        fix="Use the safetensors form of the model; BOOT_ALLOW_PICKLE=true reads pickles that "
        "hold tensors and nothing else.",
    ),
    Check(
        "checkpoint.shards",
        Fault.DATA_INVALID,
        "the safetensors format",
        shards,
        cause="A weight file is missing, cut off, a Git LFS pointer, or a web page that was saved "
        "in its place; or the folder has its weights in another format.",
        fix=_AGAIN,
    ),
    Check(
        "checkpoint.tensors",
        Fault.DATA_INVALID,
        "the safetensors headers",
        tensors,
        cause="Weight files of two downloads or revisions lie in one folder, or the model was "
        "saved with PEFT, torch.compile, FSDP or a trainer still around it.",
        fix="Empty the folder and fetch all weight files of one revision again; or merge the "
        "adapter and save the model itself once more.",
    ),
    Check(
        "checkpoint.layers",
        Fault.DATA_INVALID,
        "config.json and the safetensors headers",
        layers,
        cause="config.json or a weight file belongs to another size of the model, or weights were "
        "left out when it was saved.",
        fix="Use the config.json that belongs to these weights, and all of their files.",
    ),
    Check(
        "checkpoint.quantization",
        Fault.DATA_INVALID,
        "bitsandbytes' QuantState",
        quantization,
        cause="The model is quantised by another method, was saved without the states of its "
        "packed weights, or config.json and weights are of two models; or quantization_config "
        "names no method.",
        fix="Name the 16-bit model, which is packed to nf4 while it loads, or a complete "
        "-bnb-4bit form of it; for a packed one BOOT_LOAD_IN_4BIT must be true.",
    ),
    Check(
        "checkpoint.tokenizer",
        Fault.DATA_INVALID,
        "the folder's files",
        tokenizer,
        cause="Tokenizer files were left out of the copy, or one of them is broken; a chat "
        "template that cannot be parsed only warns.",
        fix="Copy tokenizer.json, tokenizer_config.json and the processor's files of the same "
        "revision into the folder.",
    ),
    Check(
        "checkpoint.vocabulary",
        Fault.DATA_INVALID,
        "the ids that can be given",
        vocabulary,
        cause="Tokens were added to the tokenizer and the model's embedding was not resized, "
        "tokenizer_config.json names an end of text that tokenizer.json lacks, or the tokenizer "
        "belongs to another model.",
        fix="Use the tokenizer of the same model, or resize the embedding and save it again.",
    ),
    Check(
        "checkpoint.generation",
        Fault.DATA_INVALID,
        "generation_config.json, and what transformers 5.17 accepts of it",
        generation,
        cause="Generation options contradict each other, such as a temperature without sampling.",
        fix="Set do_sample to true in generation_config.json, or remove the options named.",
    ),
    Check(
        "checkpoint.dtypes",
        Fault.DATA_INVALID,
        "the precision contract",
        dtypes,
        cause="The weights were saved in float64, in 8-bit floats, or by a quantiser that "
        "config.json does not tell of.",
        fix="Save the weights in bfloat16, float16 or float32.",
    ),
    Check(
        "checkpoint.lora_targets",
        Fault.CONFIG,
        "BOOT_FINETUNE_* and the names in the safetensors headers",
        lora_targets,
        cause="The BOOT_FINETUNE_* flags ask for a part that this model does not have, such as "
        "vision in a text-only model.",
        fix="Set the BOOT_FINETUNE_* flags to parts that the model has.",
    ),
)
