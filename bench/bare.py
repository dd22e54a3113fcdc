"""The bare library calls of a rehearsal, in one process and without bootguard.

`python -P -m bench.bare JOB`: JOB is JSON with `folder`, `load` and `adapter` (keyword arguments
of the two calls), `steps` and `tokens`. It prints the seconds at which each part had ended, as one
line of JSON, and leaves as every program does: through the interpreter's end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

_RATE = 2e-4  # of the numeric stage; any would take as long


def main() -> None:
    """Import, load, attach, step where steps are asked for."""
    job = json.loads(sys.argv[1])
    began = time.perf_counter()
    ends: dict[str, float] = {}

    def ended(part: str) -> None:
        ends[part] = round(time.perf_counter() - began, 3)

    # Unsloth first, as it asks for: it patches the others while it imports them.
    import unsloth
    from unsloth_zoo.peft_utils import get_peft_regex

    ended("import")
    model, tokenizer = _load(unsloth, job)
    ended("load")
    flags = {name: on for name, on in job["adapter"].items() if name.startswith("finetune_")}
    model = unsloth.FastModel.get_peft_model(
        # The flags alone would put LoRA on the towers too: on a CPU Unsloth does not read them.
        model, target_modules=get_peft_regex(model, **flags), **job["adapter"]
    )  # fmt: skip
    ended("adapter")
    losses = _train(model, tokenizer, job["steps"], job["tokens"])
    ended("steps")
    pairs = sum(name.endswith("lora_A.default.weight") for name, _ in model.named_parameters())
    sys.stdout.write(json.dumps({"ends": ends, "losses": losses, "pairs": pairs}) + "\n")


def _load(unsloth: Any, job: dict[str, Any]) -> tuple[Any, Any]:  # noqa: ANN401 - no types of ours
    import torch

    found: tuple[Any, Any] = unsloth.FastModel.from_pretrained(
        job["folder"],
        **job["load"] | {"dtype": getattr(torch, job["load"]["dtype"])},
    )
    return found


def _train(model: Any, tokenizer: Any, steps: int, tokens: int) -> list[float]:  # noqa: ANN401
    """Plain steps of AdamW on one text: no scan, no comparison, nothing is put back."""
    import torch

    if not steps:
        return []
    text = "the old river carries each small stone under the red house " * tokens
    encode = getattr(tokenizer, "tokenizer", tokenizer)
    ids = encode(text, truncation=True, max_length=tokens, return_tensors="pt")["input_ids"]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=_RATE, weight_decay=0.0)
    losses = []
    model.train()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
