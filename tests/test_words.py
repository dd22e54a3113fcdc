"""The leaves that give every layer its words: names, lists, signals, whose fault a file is."""

from __future__ import annotations

import errno
import signal

import pytest

from app.errors import BootError, causes
from app.facts.disk import fault_of
from app.facts.names import dtype_name, origin_name
from app.facts.words import is_utf8, listed, one_line, signal_name
from app.outcome import Fault


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("base_model.model.model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj"),
        (
            "base_model.model.model.layers.0.mlp.up_proj.base_layer.weight",
            "model.layers.0.mlp.up_proj.weight",
        ),
        ("base_model.model.score.original_module.weight", "score.weight"),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
    ],
)
def test_peft_leaves_no_mark_in_a_name(name: str, origin: str) -> None:
    assert origin_name(name) == origin


def test_a_dtype_is_named_without_its_module() -> None:
    assert (dtype_name("torch.bfloat16"), dtype_name("")) == ("bfloat16", "")


def test_many_are_counted_and_the_first_ten_shown() -> None:
    assert listed(str(n) for n in range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
    assert listed(["a", "b"], 1) == "a and 1 more"
    assert listed(["a", "b"], between="; ") == "a; b"
    assert listed([]) == ""


def test_what_comes_from_outside_stays_on_its_line() -> None:
    path = b"/home/\xff/x".decode(errors="surrogateescape")
    assert one_line(f"{path}\n") == "/home/\\udcff/x\\u000a"
    assert one_line("x" * 200) == "x" * 157 + "..."
    assert (is_utf8(path), is_utf8("/home/ä")) == (False, True)


@pytest.mark.parametrize("number", range(1, 65))
def test_every_signal_that_can_end_a_process_has_words(number: int) -> None:
    known = {each.value: each.name for each in signal.Signals}
    assert signal_name(number) == known.get(number, str(number))


def test_a_full_or_broken_disk_is_no_fault_of_this_account() -> None:
    assert {fault_of(n) for n in (errno.ENOSPC, errno.EIO, errno.EDQUOT)} == {Fault.READ_ERROR}
    assert {fault_of(n) for n in (errno.EACCES, errno.EPERM, errno.EROFS)} == {Fault.CONFIG}
    assert fault_of(errno.ENOENT) is fault_of(None) is None


def test_causes_are_followed_to_the_innermost_and_never_in_circles() -> None:
    inner, outer = ValueError("inner"), BootError("outer", fault=Fault.INTERNAL)
    outer.__cause__ = inner
    inner.__context__ = outer
    assert list(causes(outer)) == [outer, inner]
