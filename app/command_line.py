"""The command line, judged before anything runs: `python -m app.boot [--help] [-- command args]`.

By hand, because a parser library does harm here: click, typer and argparse print what they do not
know (an argument may hold a secret), end the process by themselves with status 2, which is no code
of ours, and leave no report. One flag and one separator need no grammar.

Arguments of the command are never shown anywhere; of our own ones only the name is.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.facts.words import one_line
from app.outcome import Fault, Finding, failed
from app.redaction import redacted

_HELP = frozenset(("--help", "-h"))
_END = "--"
_LONGEST_NAME = 80
# Linux cuts a script's first line here (BINPRM_BUF_SIZE in linux/binfmts.h).
_FIRST_LINE_BYTES = 256


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was asked for: `command` is empty where none was given, `problems` is what is wrong."""

    command: tuple[str, ...] = ()
    problems: tuple[Finding, ...] = ()


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> CommandLine:
    """Judge the arguments; a command's program is looked up on the environment's PATH.

    A shell answers 127 or 126 for a program that cannot be started; after an hour of loading that
    would be late, here it is known at once. `--help` alone is the entry point's, and beside other
    arguments it is those that are wrong.
    """
    ours, command = _split(arguments)
    findings = [_unknown(argument) for argument in ours if argument not in _HELP]
    if ours and not findings:
        findings.append(_help_beside())
    if command is not None:
        finding = trouble(command[0], environ) if command else _no_command()
        findings += [finding] if finding is not None else []
    return CommandLine(command=tuple(command or ()), problems=tuple(findings))


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str] | None]:
    """Ours and the command's; None where there is no `--`."""
    if _END not in arguments:
        return arguments, None
    place = arguments.index(_END)
    return arguments[:place], arguments[place + 1 :]


def _unknown(argument: str) -> Finding:
    """Only its name is said: the value after `=` may be anything."""
    name = _printable(argument.partition("=")[0])
    return failed(
        f"unknown argument '{name}'",
        expected="no arguments, --help, or -- and a command",
        actual=name or "an empty argument",
        next_step="settings are BOOT_* environment variables: see --help;"
        " a command to run after a pass stands after --",
        fault=Fault.USAGE,
    )


def _help_beside() -> Finding:
    return failed(
        "--help stands beside something else",
        expected="--help alone, first",
        actual="--help and a command",
        next_step="leave one of the two away",
        fault=Fault.USAGE,
    )


def _no_command() -> Finding:
    return failed(
        "no command after --",
        expected="a command after --",
        actual="nothing",
        next_step="name the command to run after a pass, or leave -- away",
        fault=Fault.USAGE,
    )


def trouble(name: str, environ: Mapping[str, str]) -> Finding | None:
    """Why the command of that name cannot be started; None where it can."""
    search = environ.get("PATH", os.defpath)
    try:
        program = shutil.which(name, path=search)
        present = shutil.which(name, mode=os.F_OK, path=search)
    except ValueError:  # a NUL byte, or text that no path can hold
        program = present = None
    if program is None:
        return _cannot_start(name, "not executable" if present else _where(name))
    why = _interpreter_trouble(program)
    return _cannot_start(name, why) if why else None


def _where(name: str) -> str:
    return "no such file" if "/" in name else "not found on PATH"


def _interpreter_trouble(program: str) -> str:
    """What is wrong with a script's first line, the usual reason why a file there will not start.

    Other kinds of files are left to the kernel, which may have been taught them.
    """
    try:
        handle = os.open(program, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""  # what may be executed need not be readable
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return "no regular file"
        first, _, _ = os.read(handle, _FIRST_LINE_BYTES).partition(b"\n")
    except OSError:
        return ""
    finally:
        os.close(handle)
    if not first.startswith(b"#!"):
        return ""
    # The kernel ends the name at a blank or a tab, and takes a carriage return for a part of it.
    interpreter = os.fsdecode(re.split(rb"[ \t]", first[2:].strip(b" \t"), maxsplit=1)[0])
    if Path(interpreter).is_file() and os.access(interpreter, os.X_OK):
        return ""
    return f"a script for {one_line(repr(interpreter))}, which cannot be executed here"


def _cannot_start(name: str, why: str) -> Finding:
    # FOO=bar before a command is a shell's habit, and bar may be anything.
    shown, equals, _ = name.partition("=")
    step = (
        "set variables with env, as in -- env NAME=value command"
        if equals
        else "correct the command after --, or PATH"
    )
    shown = _printable(shown)
    return failed(
        f"the command '{shown}' cannot be started: {why}",
        expected="a program that can be executed",
        actual=f"{shown or 'an empty name'}: {why}",
        next_step=step,
        fault=Fault.USAGE,
    )


def _printable(name: str) -> str:
    return one_line(redacted(name), _LONGEST_NAME)
