"""A few greedy tokens, as a user of the adapted model would ask for them."""

from __future__ import annotations

import time
from typing import Any

import torch

from app.engine.arithmetic import Arithmetic, computing, of_the_device
from app.engine.batch import prompt
from app.engine.chat import text_tokenizer
from app.engine.weights import to_host
from app.facts.numerics import GenerationFacts
from app.facts.words import one_line
from app.plan import Plan

TOKENS = 8  # one pass over the prompt, and seven with a cache, which are one row each
# What a checkpoint's generation_config.json may ask for beside sampling, and what then either is
# refused or is no greedy search.
_GREEDY: dict[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "penalty_alpha": None,
    "stop_strings": None,
}


def generate(model: Any, tokenizer: Any, plan: Plan, how: Arithmetic) -> GenerationFacts:
    """Up to eight tokens through the chat template; fewer where the model ends its answer.

    The autocast is the trainer's. Unsloth's own `generate` on a GPU puts another one inside: the
    model's dtype, float16 for its forced float32 families. It also turns the model to inference,
    which the caller takes back.
    """
    inputs, note = prompt(model, tokenizer, plan)
    n_prompt = inputs["input_ids"].shape[1]
    padding = getattr(text_tokenizer(tokenizer), "pad_token_id", None)
    options = {} if padding is None else {"pad_token_id": padding}
    model.eval()
    started = time.perf_counter()
    try:
        with torch.no_grad(), computing(how, inputs["input_ids"].device):
            found = model.generate(
                **inputs,
                max_new_tokens=TOKENS,
                use_cache=True,
                output_logits=True,
                return_dict_in_generate=True,
                **_GREEDY,
                **options,
            )
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as e:
        if of_the_device(e):
            raise
        problem = one_line(f"{type(e).__name__}: {e}")
        return GenerationFacts(n_prompt, note=note, problem=problem)
    largest = to_host([torch.linalg.vector_norm(each, float("inf")) for each in found.logits])
    tokens = found.sequences[0, n_prompt:].tolist()
    seconds = time.perf_counter() - started
    return GenerationFacts(n_prompt, tuple(tokens), tuple(largest), note, "", seconds)
