"""What a job takes from the boot: the precision to train in, a folder to write to, a tokenizer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from app.report import Report

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

DATA = Path(__file__).parent / "data" / "questions.jsonl"


def precision(report: Report) -> dict[str, bool]:
    """The trainer's flags for the precision that the boot has proved.

    Never guess them from the card: `torch.cuda.is_bf16_supported()` is true on a V100, which only
    emulates it. On a CPU nothing is autocast, and Unsloth's forced float32 path (Gemma 3 and 3n in
    float16) wants neither flag.
    """
    if report.precision is None:
        raise ValueError("the report has no precision: the boot has stopped before that stage")
    found = report.precision.resolved
    on_gpu = found.device != "cpu"
    return {
        "use_cpu": not on_gpu,
        "bf16": on_gpu and found.compute_dtype == "bfloat16",
        "fp16": on_gpu and found.compute_dtype == "float16" and not found.forced_float32,
    }


def output_folder(report: Report, name: str) -> Path:
    """Beside the report, which lies on a volume that outlives the container."""
    parent = os.environ.get("EXAMPLE_OUTPUT_DIR") or report.settings["report_dir"]
    return Path(parent) / name


def text_tokenizer(tokenizer: PreTrainedTokenizerBase | ProcessorMixin) -> PreTrainedTokenizerBase:
    """A multimodal model comes with a processor; for text alone its tokenizer is what trains."""
    return getattr(tokenizer, "tokenizer", tokenizer)


def questions() -> list[dict[str, str]]:
    """The data: one `{"question": ..., "answer": ...}` a line."""
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def chat(tokenizer: PreTrainedTokenizerBase, question: str, answer: str | None = None) -> str:
    """Question and answer as the model's own chat template writes them.

    Without an answer it ends where the model has to go on.
    """
    messages = [{"role": "user", "content": question}]
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    text: str = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=answer is None
    )
    # A trainer tokenises the text once more, and most tokenizers put a BOS in front by themselves.
    if tokenizer("").input_ids[:1] == [tokenizer.bos_token_id]:
        text = text.removeprefix(tokenizer.bos_token)
    return text
