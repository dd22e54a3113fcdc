"""Judges of what turns text into ids; `app.checks.checkpoint` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.checks._folder import something_else
from app.checks._unreadable import fault_in, step_for
from app.facts.checkpoint import CheckpointFacts, TokenFacts
from app.facts.shapes import embedding_rows
from app.facts.words import listed, one_line
from app.outcome import Finding, failed, passed, skipped, warned
from app.plan import Plan

_PADDING = "pad_token_id"
# One of these sets is enough for a tokenizer (transformers' slow and fast formats).
_TOKENIZERS = (
    *({"tokenizer.json"}, {"tokenizer.model"}, {"vocab.json", "merges.txt"}, {"vocab.txt"}),
    *({"spiece.model"}, {"tekken.json"}, {"sentencepiece.bpe.model"}),
)
_PROCESSORS = frozenset({"processor_config.json", "preprocessor_config.json"})


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
    names = set(facts.other_files)
    if not any(files <= names for files in _TOKENIZERS):
        return failed(
            "the folder has no tokenizer",
            expected=expected,
            actual="none",
            next_step="copy the tokenizer files of the same revision into the folder",
        )
    return _imperfect(facts, expected) or passed("tokenizer files are there", expected=expected)


def _imperfect(facts: CheckpointFacts, expected: str) -> Finding | None:
    """What a job on plain text can do without."""
    lacking = [] if "tokenizer_config.json" in facts.other_files else ["tokenizer_config.json"]
    parts = [part for part in ("vision_config", "audio_config") if facts.config.get(part)]
    if parts and _PROCESSORS.isdisjoint(facts.other_files):
        lacking.append(f"processor_config.json (the model has a {parts[0]})")
    told = [f"the folder has no {name}" for name in lacking]
    steps = [f"copy {name.partition(' ')[0]} from the same revision" for name in lacking]
    for name, problem in facts.broken_templates.items():
        told.append(f"{name}: {problem}; a job that formats chats would end there")
        steps.append(f"correct the template in {name}, or fetch the file of the same revision")
    if not told:
        return None
    return warned(
        listed(told, 1),
        expected=expected,
        actual=listed(told, between="; "),
        next_step=listed(steps, between="; "),
    )


def vocabulary(facts: CheckpointFacts, _plan: Plan) -> Finding:
    """An id without a row of the embedding ends a training run in the middle, on the device."""
    rows, source = embedding_rows(facts)
    if rows is None:
        return skipped("neither config nor weights say how many tokens the model knows")
    expected = f"ids below {rows}, the model's number of tokens ({source})"
    step = "use the tokenizer of the same model, or resize the model's embedding and save it again"
    given = list(_given(facts.tokens, rows))
    # Padding is fed to the model, and its embedding is built around that id.
    padding = list(_outside(facts.tokens.special, rows, padding=True))
    if given or padding:
        return failed(
            f"the model knows {rows} tokens, and {listed([*given, *padding], 1)}",
            expected=expected,
            actual=listed([*given, *padding]),
            next_step=step
            if given
            else "correct that id in the file, or fetch the file of the same revision again",
        )
    # First and last tokens come from the tokenizer: sound models keep GPT-2's ids here.
    idle = [
        *_unknown(facts.tokens, rows, ("bos_token", "unk_token")),
        *_outside(facts.tokens.special, rows, padding=False),
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


def _given(tokens: TokenFacts, rows: int) -> Iterator[str]:
    """Ids beyond the rows that the tokenizer itself gives."""
    if tokens.largest >= rows:
        yield f"tokenizer.json goes up to id {tokens.largest}"
    for number, text, used in tokens.added:
        if number >= rows and used:
            yield f"the added token {one_line(text, 60)} has the id {number}"
    yield from _unknown(tokens, rows, ("eos_token", "pad_token"))


def _unknown(tokens: TokenFacts, rows: int, keys: tuple[str, ...]) -> Iterator[str]:
    """Tokens that the load adds behind all others; rows that are to spare take them."""
    for number, (key, text) in enumerate(tokens.absent, tokens.next_id):
        if key in keys and number >= rows:
            yield (
                f"the {key} {one_line(text, 60)} of tokenizer_config.json is not in tokenizer.json "
                f"and gets the id {number}"
            )


def _outside(special: Mapping[str, tuple[int, ...]], rows: int, *, padding: bool) -> Iterator[str]:
    """Ids of the configuration files beyond the rows; negative ones mean "none" to old models."""
    for where, ids in special.items():
        if where.endswith(_PADDING) is padding:
            yield from (f"{where} is {number}" for number in ids if number >= rows)
