"""Reinforcement learning (GRPO) on the guarded model: `BOOT_JOB=examples.grpo_job:main`.

A few steps towards a toy reward, answers full of vowels; put your own function in its place. The
adapter lands beside the report. The same on a CPU (a rehearsal, seconds) and on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer

from app.report import Report
from examples.guarded import chat, output_folder, precision, questions, text_tokenizer


def vowels(completions: Sequence[str], **_: object) -> list[float]:
    """The reward of each completion: its share of vowels, from 0 to 1."""
    return [sum(c in "aeiou" for c in text.lower()) / max(len(text), 1) for text in completions]


def main(model: PeftModel, tokenizer: PreTrainedTokenizerBase, report: Report) -> int:
    """Train, save the adapter. 0 where every loss is finite and the adapter has moved, else 1."""
    text = text_tokenizer(tokenizer)
    folder = output_folder(report, "adapter-grpo")
    before = trained(model)
    trainer = GRPOTrainer(
        model=model,
        processing_class=text,
        reward_funcs=[vowels],
        train_dataset=Dataset.from_list(
            [{"prompt": chat(text, row["question"])} for row in questions()]
        ),
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=5,
            per_device_train_batch_size=8,  # answers a step: two questions
            num_generations=4,  # answers a question, judged against each other
            max_completion_length=32,
            learning_rate=2e-4,
            lr_scheduler_type="constant",
            logging_steps=1,
            seed=3407,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **precision(report),
        ),
    )
    trainer.train()
    model.save_pretrained(folder)
    text.save_pretrained(folder)

    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    losses, rewards = ([step[key] for step in steps] for key in ("loss", "reward"))
    moved = sum(not torch.equal(new, before[name]) for name, new in trained(model).items())
    shown = " ".join(f"{reward:.3f}" for reward in rewards)
    print(f"grpo: {moved} of {len(before)} matrices moved; adapter in {folder}; rewards {shown}")  # noqa: T201
    return 0 if moved and all(map(isfinite, losses + rewards)) else 1


def trained(model: PeftModel) -> dict[str, torch.Tensor]:
    """A copy of what is trained: the adapter's matrices."""
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
