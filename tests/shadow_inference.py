"""What Unsloth's CUDA path does to a model that is to generate, and whether it is taken back.

`python -m tests.shadow_inference v100` in a process of its own: `tests.shadow_cuda` fakes a device.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from app.probes.safetensors import read_checkpoint
from tests import shadow_cuda
from tests.stack_models import plan_for


def main(card: str) -> None:
    """Two lists of names, as JSON: changed by `for_inference`, and still so after `preserved`."""
    profile = shadow_cuda.import_as_on(card)
    from app.engine import adapter, loader
    from app.engine.preserve import condition, differing, preserved

    # "unsloth" wants pinned memory at once, which needs a driver.
    plan = replace(plan_for("llama-nf4", use_gradient_checkpointing=True), profile=profile)
    assert plan.resolved is not None
    loaded = loader.load(plan, read_checkpoint(plan.resolved.folder))
    model = adapter.attach(loaded.model, plan)
    model.train()
    trained = [m for pair in adapter.lora_parameters(model).values() for m in pair]
    before = condition(model, trained)
    with preserved(model, trained):
        model.for_inference()
        changed = differing(before, condition(model, trained))
    left = differing(before, condition(model, trained))
    sys.stdout.write("\n" + json.dumps([changed, left]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
