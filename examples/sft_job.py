"""Supervised fine-tuning on the guarded model: `BOOT_JOB=examples.sft_job:main`.

Two epochs over forty short questions; the adapter lands beside the report. The same on a CPU
(a rehearsal, seconds) and on a GPU. The boot has imported Unsloth before this module, so `trl` is
already patched here, and the model comes with its LoRA adapter: nothing is loaded twice.
"""

from __future__ import annotations

from statistics import fmean

from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from app.report import Report
from examples.guarded import chat, output_folder, precision, questions, text_tokenizer


def main(model: PeftModel, tokenizer: PreTrainedTokenizerBase, report: Report) -> int:
    """Train, save the adapter. The exit status is 0 where the loss has fallen, else 1."""
    text = text_tokenizer(tokenizer)
    folder = output_folder(report, "adapter-sft")
    rows = [{"text": chat(text, row["question"], row["answer"])} for row in questions()]
    trainer = SFTTrainer(
        model=model,
        processing_class=text,
        train_dataset=Dataset.from_list(rows),
        args=SFTConfig(
            output_dir=str(folder),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            learning_rate=2e-4,
            lr_scheduler_type="constant",
            max_length=256,
            logging_steps=1,
            seed=3407,
            save_strategy="no",  # a long job saves, and resumes from, checkpoints in `folder`
            report_to="none",
            disable_tqdm=True,  # lines, not bars, in a log
            **precision(report),
        ),
    )
    trainer.train()
    model.save_pretrained(folder)
    text.save_pretrained(folder)

    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    # Both halves saw every example once, so what differs is the training and not the data.
    first, last = fmean(losses[: len(losses) // 2]), fmean(losses[len(losses) // 2 :])
    steps = " ".join(f"{loss:.3f}" for loss in losses)
    print(f"sft: mean loss {first:.3f}, then {last:.3f}; adapter in {folder}; steps {steps}")  # noqa: T201
    return 0 if last < first else 1  # not a number is no fall either
