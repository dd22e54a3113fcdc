"""Judges of what turns text into ids; `app.checks.checkpoint` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.checks._folder import something_else
from app.checks._unreadable import fault_in, step_for
from app.facts.checkpoint import (
    CheckpointFacts,
    TokenFacts,
    embedding_rows,
    tokenizer_problems,
)
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, passed, skipped, warned
from app.plan import Plan

_PADDING = "pad_token_id"


def tokenizer(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """Without its own tokenizer a model is fed another one's numbers."""
    expected = "tokenizer.json or tokenizer.model (or a vocabulary), and tokenizer_config.json"
    if facts.broken_files:
        broken = [f"{one_line(name)}: {problem}" for name, problem in facts.broken_files.items()]
        return failed(
            listed(broken, 1),
            expected=expected,
            actual=listed(broken, between="; "),
            next_step=step_for(facts, facts.broken_files),
            fault=fault_in(facts, facts.broken_files),
        )
    if facts.config_problem and something_else(facts) is not None:
        return skipped("the folder is no model of transformers: checkpoint.config says what it is")
    usable, lacking = tokenizer_problems(facts)
    if not usable:
        return failed(
            "the folder has no tokenizer",
            expected=expected,
            actual="none",
            next_step="copy the tokenizer files of the same revision into the folder",
        )
    if lacking:
        return warned(
            f"the folder has no {lacking[0]}",
            expected=expected,
            actual=listed(lacking),
            next_step="copy it from the same revision",
        )
    return passed("tokenizer files are there", expected=expected)


def vocabulary(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """An id without a row of the embedding ends a training run in the middle, on the device."""
    rows, source = embedding_rows(facts)
    if rows is None:
        return skipped("neither config nor weights say how many tokens the model knows")
    expected = f"ids below {rows}, the model's number of tokens ({source})"
    beyond = list(_beyond(facts, rows))
    step = "use the tokenizer of the same model, or resize the model's embedding and save it again"
    if beyond:
        return failed(
            f"the model knows {rows} tokens, and {listed(beyond, 1)}",
            expected=expected,
            actual=listed(beyond),
            next_step=step
            if beyond[0].startswith(("tokenizer.json", "the "))
            else "correct that id in the file, or fetch the file of the same revision again",
        )
    idle = [
        *_unknown(facts.tokens, rows, ("bos_token", "unk_token")),
        *_idle(facts.tokens.special, rows),
    ]
    if idle:
        return warned(
            f"the model knows {rows} tokens, and {listed(idle, 1)}: a text never begins or ends "
            "with it",
            expected=expected,
            actual=listed(idle),
            next_step="set the tokenizer's own id in that file",
        )
    unused = [f"{text} ({n})" for n, text, used in facts.tokens.added if n >= rows and not used]
    if unused:
        # Gemma 3 1B is published so: an image's token in a model that sees none.
        return warned(
            f"{len(unused)} special token(s) have no row in the model: {listed(unused, 3)}",
            expected=expected,
            actual=listed(unused),
            next_step=f"keep them out of the training text, or {step}",
        )
    return passed(f"{rows} tokens, and no id beyond", expected=expected)


def _beyond(facts: CheckpointFacts, rows: int) -> Iterator[str]:
    tokens = facts.tokens
    if tokens.largest >= rows:
        yield f"tokenizer.json goes up to id {tokens.largest}"
    for number, text, used in tokens.added:
        if number >= rows and used:
            yield f"the added token {one_line(text, 60)} has the id {number}"
    yield from _unknown(tokens, rows, ("eos_token", "pad_token"))
    yield from _special(tokens.special, rows)


def _unknown(tokens: TokenFacts, rows: int, keys: tuple[str, ...]) -> Iterator[str]:
    """Tokens that the load adds behind all others; rows that are to spare take them."""
    for number, (key, text) in enumerate(tokens.absent, tokens.next_id):
        if key in keys and number >= rows:
            yield (
                f"the {key} {one_line(text, 60)} of tokenizer_config.json is not in tokenizer.json "
                f"and gets the id {number}"
            )


def _special(special: Mapping[str, tuple[int, ...]], rows: int) -> Iterator[str]:
    """Padding is fed to the model, and its embedding is built around that id."""
    yield from (told for told in _outside(special, rows) if _PADDING in told)


def _idle(special: Mapping[str, tuple[int, ...]], rows: int) -> Iterator[str]:
    """First and last tokens come from the tokenizer: sound models keep GPT-2's ids here."""
    yield from (told for told in _outside(special, rows) if _PADDING not in told)


def _outside(special: Mapping[str, tuple[int, ...]], rows: int) -> Iterator[str]:
    for where, ids in special.items():
        # Negative ones mean "none" to old models.
        for number in ids:
            if number >= rows:
                yield f"{where} is {number}"
