"""The judge of layers and embeddings: config.json against the weights' own names and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from app.facts.checkpoint import CheckpointFacts
from app.facts.parts import left_out
from app.facts.shapes import (
    Embeddings,
    Layers,
    Stack,
    in_layer,
    language_layers,
    language_stack,
    token_embeddings,
)
from app.facts.sides import absent_outside, head_problems, side_problems
from app.facts.words import listed
from app.outcome import Finding, failed, passed, skipped, warned
from app.plan import Plan

_NORM = re.compile(r"(?:norm|ln)\w*\.weight\Z")  # `norm`, `final_layernorm`, `ln_f`
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.weight\Z")
_OTHERS = "use the config.json that belongs to these weights, and all of their files"
_MISSING = (
    "fetch all weight files of the same revision again; if they are whole, save the model again "
    "with the class that generates text, so that nothing is left out"
)


def layers(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """What the configuration promises of layers and embeddings must be in the weights."""
    if why := _unreadable(facts):
        return skipped(why)
    found, embeddings = language_layers(facts), token_embeddings(facts)
    if found is None and embeddings is None:
        return skipped("neither layers nor embeddings are known by their names in the weights")
    stack = language_stack(facts, found) if found else None
    wrong, lacking = _problems(facts, found, stack, embeddings)
    bad = [*wrong, *lacking]
    if bad and (parts := left_out(facts).parts):
        return skipped(f"the index leaves out {listed(parts, 2)}: checkpoint.index says so")
    expected = "as many layers, tokens and hidden units in the weights as config.json says"
    if bad:
        return failed(
            f"{listed(bad[:1])}{_more(len(bad) - 1)}",
            expected=expected,
            actual=listed(bad, between="; "),
            next_step=_OTHERS if wrong else _MISSING,
        )
    told = [f"{stack.held} layers"] if stack else []
    told += [f"embeddings {list(embeddings.shape)}"] if embeddings else []
    if stack is not None and stack.doubt:
        return warned(
            f"config.json says {stack.wanted} layers, and the weights have {stack.held}",
            expected=expected,
            actual=listed(told),
            next_step="check that config.json belongs to these weights: few families keep one "
            "more for multi-token prediction",
        )
    return passed(f"config.json and the weights agree: {listed(told)}", expected=expected)


def _unreadable(facts: CheckpointFacts) -> str:
    """Why nothing can be said, empty where something can."""
    if facts.config_problem or facts.index_problem or not facts.tensors:
        return "config or weights could not be read"
    if any(shard.problem for shard in facts.shards) or (facts.index and not facts.shards):
        return "not all of the weights could be read"
    return ""


def is_whole(facts: CheckpointFacts) -> bool:
    """Whether it is certain that no weight is missing, which only a plain model's names can tell.

    All of its layers have the same weights, and it has embeddings, a norm behind the layers, and a
    head, unless config.json says that the embeddings are the head too.
    """
    if _unreadable(facts):
        return False
    found, embeddings = language_layers(facts), token_embeddings(facts)
    if found is None or embeddings is None:
        return False
    outside = [header.name for header in facts.tensors if not in_layer(header.name)]
    tied = facts.text_config.get("tie_word_embeddings", facts.config.get("tie_word_embeddings"))
    headed = tied is True or any(_HEAD.search(name) for name in outside)
    if not (headed and any(_NORM.search(name) for name in outside)):
        return False
    first, *others = [weights.keys() for weights in found.held.values()]
    if any(weights != first for weights in others):
        return False
    stack = language_stack(facts, found)
    return not (stack.doubt or any(_problems(facts, found, stack, embeddings)))


def _problems(
    facts: CheckpointFacts,
    found: Layers | None,
    stack: Stack | None,
    embeddings: Embeddings | None,
) -> tuple[list[str], list[str]]:
    """Where weights and config.json contradict each other, and what the weights lack."""
    wrong = list(embeddings.problems) if embeddings else []
    if found is None or stack is None:
        return wrong, []
    wrong = [*_counted(stack), *wrong, *side_problems(facts, found)]
    wrong += head_problems(facts, embeddings) if embeddings else ()
    return wrong, [*_gaps(stack), *absent_outside(facts, found, embeddings)]


def _more(n: int) -> str:
    """How many problems stand behind the first one."""
    return f" (and {n} more problem{'s' if n > 1 else ''} of layers and sizes)" if n else ""


def _counted(stack: Stack) -> Iterator[str]:
    if stack.short:
        shown = listed([str(number) for number in stack.absent], 5)
        many = len(stack.absent) > 1
        yield (
            f"config.json says {stack.wanted} layers, and the weights have none of number {shown}, "
            f"so that {'these layers' if many else 'this layer'} would be random numbers"
        )
    elif stack.surplus:
        yield f"config.json says {stack.wanted} layers, and the weights have {stack.held}"


def _gaps(stack: Stack) -> Iterator[str]:
    if stack.gaps:
        yield f"the weights lack {listed(stack.gaps, 3)}, which every other layer has"
