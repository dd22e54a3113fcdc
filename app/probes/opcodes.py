"""Reads what a pickle would build, opcode by opcode, and runs nothing of it.

A pickle is a program: it names functions and calls them. Here names stay names and calls stay
records. Understood is a little more than what torch's own loader with `weights_only` takes
(torch 2.14, `_weights_only_unpickler.py`), so that newer pickles can be named for what they hold;
`foreign` says which opcodes that loader refuses.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

_MOST_OPCODES = 5_000_000  # some 40 a tensor; bounds the time that one file can take


class PickleError(Exception):
    """The pickle is not what it must be; the text is one line."""


@dataclass(frozen=True, slots=True)
class Name:
    """A function or class, by module and name."""

    module: str
    name: str

    def __str__(self) -> str:
        """As it is written in Python."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A persistent id: what lies outside of the pickle, as a record in the archive."""

    value: Any


@dataclass(slots=True, eq=False)
class Call:
    """A call that the pickle asks for. `items` are what it puts into the result."""

    function: Any
    arguments: Any
    items: dict[str, Any] = field(default_factory=dict)


class _Mark:
    """Where a group on the stack begins."""


@dataclass(slots=True)
class Machine:
    """The state of one reading: the stack, the memo, every name and foreign opcode that came up."""

    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    foreign: dict[str, None] = field(default_factory=dict)

    def pop(self) -> Any:  # noqa: ANN401 - whatever a pickle builds
        """The topmost value."""
        return self.stack.pop()

    def group(self) -> list[Any]:
        """Everything above the last mark, which goes too."""
        at = len(self.stack) - 1
        while not isinstance(self.stack[at], _Mark):
            at -= 1
            if at < 0:
                raise PickleError("a group in the pickle has no beginning")
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def name(self, module: object, name: object) -> None:
        """Push a function or class, and note it."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleError("the pickle names a function that it computes")
        found = Name(module, name)
        self.names[str(found)] = None
        self.stack.append(found)

    def put(self, pairs: list[Any]) -> None:
        """Keys and values into the table on top; only texts are keys of tensors."""
        table = self.stack[-1]
        items = table.items if isinstance(table, Call) else table
        if not isinstance(items, dict):
            raise PickleError("the pickle fills something that is no table")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if isinstance(key, str):
                items[key] = value


def read_pickle(file: BinaryIO) -> tuple[Any, Machine]:
    """What the next pickle of the file would build; the file stands behind it afterwards.

    Raises:
        PickleError: it is no pickle, or does what no table of tensors needs.
        OSError: the file cannot be read.
    """
    machine = Machine()
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if number > _MOST_OPCODES:
                raise PickleError("the pickle has more steps than any table of tensors")
            if opcode.name == "STOP":
                break
            _STEPS[opcode.name](machine, argument)
            if opcode.name in _FOREIGN:
                machine.foreign[opcode.name] = None
        return machine.pop(), machine
    except KeyError as error:
        raise PickleError(f"the pickle uses {str(error)[:40]}, which tensors do not need") from None
    except OSError:
        raise
    except (ValueError, IndexError, TypeError, OverflowError, EOFError) as error:
        raise PickleError(f"no valid pickle: {' '.join(str(error).split())[:120]}") from None
    except (MemoryError, RecursionError):
        raise PickleError("the pickle is nested or sized beyond reason") from None


def _push(machine: Machine, value: object) -> None:
    machine.stack.append(value)


def _constant(make: Callable[[], Any]) -> Callable[[Machine, Any], None]:
    return lambda machine, _: machine.stack.append(make())


def _tuple_of(count: int) -> Callable[[Machine, Any], None]:
    def build(machine: Machine, _: object) -> None:
        if len(machine.stack) < count:
            raise PickleError("the pickle takes more than it has")
        at = len(machine.stack) - count
        machine.stack[at:] = [tuple(machine.stack[at:])]

    return build


def _named(machine: Machine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    machine.name(module, name)


def _named_on_stack(machine: Machine, _: object) -> None:
    name, module = machine.pop(), machine.pop()
    machine.name(module, name)


def _call(machine: Machine, _: object) -> None:
    arguments, function = machine.pop(), machine.pop()
    machine.stack.append(Call(function, arguments))


def _append(machine: Machine, values: list[Any]) -> None:
    if not isinstance(machine.stack[-1], list):
        raise PickleError("the pickle appends to something that is no list")
    machine.stack[-1].extend(values)


def _one_item(machine: Machine, _: object) -> None:
    value, key = machine.pop(), machine.pop()
    machine.put([key, value])


def _one_value(machine: Machine, _: object) -> None:
    value = machine.pop()
    _append(machine, [value])


def _state(machine: Machine, _: object) -> None:
    """`BUILD`: a dictionary's attributes, as `OrderedDict._metadata` has; no tensor is in them."""
    machine.pop()


def _memoized(machine: Machine, argument: int | None) -> None:
    machine.memo[len(machine.memo) if argument is None else argument] = machine.stack[-1]


def _remembered(machine: Machine, argument: int) -> None:
    if argument not in machine.memo:
        raise PickleError("the pickle recalls what it never stored")
    machine.stack.append(machine.memo[argument])


def _nothing(_machine: Machine, _argument: object) -> None:
    """A frame or the protocol's number."""


# Of these torch's loader with `weights_only` knows none (2.14): protocol 3 and later.
_FOREIGN = frozenset(
    (
        *("FRAME", "SHORT_BINUNICODE", "BINUNICODE8", "LONG4", "SHORT_BINBYTES", "BINBYTES"),
        *("STACK_GLOBAL", "MEMOIZE", "PUT", "GET"),
    )
)
_STEPS: dict[str, Callable[[Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), _nothing),
    **dict.fromkeys(
        (
            *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2"),
            *("LONG1", "LONG4", "BINFLOAT", "SHORT_BINSTRING", "SHORT_BINBYTES", "BINBYTES"),
        ),
        _push,
    ),
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    "EMPTY_TUPLE": _constant(tuple),
    "EMPTY_LIST": _constant(list),
    "EMPTY_DICT": _constant(dict),
    "EMPTY_SET": _constant(set),
    "MARK": _constant(_Mark),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.group())),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "GLOBAL": _named,
    "STACK_GLOBAL": _named_on_stack,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _call),
    "BINPERSID": lambda machine, _: machine.stack.append(Stored(machine.pop())),
    "SETITEM": _one_item,
    "SETITEMS": lambda machine, _: machine.put(machine.group()),
    "APPEND": _one_value,
    "APPENDS": lambda machine, _: _append(machine, machine.group()),
    "BUILD": _state,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE", "PUT"), _memoized),
    **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), _remembered),
}
