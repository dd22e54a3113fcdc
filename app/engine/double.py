"""`boot_gemma` where a test has put a double in the place of Unsloth's loader."""

from __future__ import annotations

from typing import Any

from app import slippage
from app.engine.arguments import adapter_arguments
from app.plan import Plan


def boot(plan: Plan) -> tuple[Any, Any]:
    """The same calls on a test's double of FastModel: no folder, no census, dtypes only.

    A double's model may offer nothing but `parameters()`, once: it is judged by that before the
    adapter, and after it only where it is a real module.
    """
    import torch
    from unsloth import FastModel

    request = plan.request
    model, tokenizer = FastModel.from_pretrained(
        request.base_model_id,
        max_seq_length=request.max_seq_length,
        load_in_4bit=request.load_in_4bit,
        dtype=getattr(torch, plan.profile.compute_dtype),
    )
    slippage.judge(model, plan.profile)
    adapted = FastModel.get_peft_model(model, **adapter_arguments(request))
    if slippage.is_module(adapted):
        slippage.judge(adapted, plan.profile)
    return adapted, tokenizer
