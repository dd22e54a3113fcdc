"""The judge of layers and embeddings: config.json against the weights' own names and shapes."""

from __future__ import annotations

from collections.abc import Iterator

from app.facts.checkpoint import CheckpointFacts
from app.facts.shapes import Stack, language_layers, language_stack, token_embeddings
from app.facts.sides import absent_outside, head_problems, side_problems
from app.facts.words import listed
from app.outcome import Finding, failed, passed, skipped, warned
from app.plan import Plan

_OTHERS = "use the config.json that belongs to these weights, and all of their files"
_MISSING = (
    "fetch all weight files of the same revision again; if they are whole, save the model again "
    "with the class that generates text, so that nothing is left out"
)


def layers(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """What the configuration promises of layers and embeddings must be in the weights."""
    if facts.config_problem or facts.index_problem or not facts.tensors:
        return skipped("config or weights could not be read")
    if any(shard.problem for shard in facts.shards) or (facts.index and not facts.shards):
        return skipped("not all of the weights could be read")
    found, embeddings = language_layers(facts), token_embeddings(facts)
    if found is None and embeddings is None:
        return skipped("neither layers nor embeddings are known by their names in the weights")
    stack = language_stack(facts, found) if found else None
    wrong = list(embeddings.problems) if embeddings else []
    lacking: list[str] = []
    if found is not None and stack is not None:
        wrong = [*_counted(stack), *wrong, *side_problems(facts, found)]
        wrong += head_problems(facts, embeddings) if embeddings else ()
        lacking = [*_gaps(stack), *absent_outside(facts, found, embeddings)]
    bad = [*wrong, *lacking]
    expected = "as many layers, tokens and hidden units in the weights as config.json says"
    if bad:
        return failed(
            listed(bad, 1),
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


def _counted(stack: Stack) -> Iterator[str]:
    if stack.short:
        shown = listed([str(number) for number in stack.absent], 5)
        yield (
            f"config.json says {stack.wanted} layers, and the weights have none of number {shown}: "
            "they would be random numbers"
        )
    elif stack.surplus:
        yield f"config.json says {stack.wanted} layers, and the weights have {stack.held}"


def _gaps(stack: Stack) -> Iterator[str]:
    if stack.gaps:
        yield f"the weights lack {listed(stack.gaps, 3)}, which every other layer has"
