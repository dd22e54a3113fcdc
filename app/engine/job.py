"""The user's own code on the guarded model: found, called, and its end as an exit status.

Imports no torch itself. The job runs in the worker, where the stack is loaded and patched.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import inspect
import io
import operator
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import causes
from app.facts.job_target import JOB_ARGUMENTS
from app.facts.words import one_line
from app.streams import put

LARGEST_CODE = 255  # of an exit status; a process has no others
UNCAUGHT = 1  # as the interpreter ends on an exception
INTERRUPTED = 128 + signal.SIGINT
ASKED = f"({', '.join(JOB_ARGUMENTS)})"
_LONGEST = 500  # characters of one text
_LONG_BITS = 64  # of a C long; the interpreter ends with 255 on a longer number


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended by itself: exactly one of `returned` and `raised` is set.

    `code` is the exit status that this amounts to.
    """

    returned: str | None
    raised: str | None
    code: int


def run(
    target: str, model: Any, tokenizer: Any, report: object, path: Sequence[str] = ()
) -> JobEnd:
    """Call `package.module:function` with model, tokenizer and report, and say how it ended.

    `path` is searched for the module after everything else. Nothing that the job raises comes out
    of here, but a signal that it does not catch ends the process, as it would in a program of the
    job's own. Main thread only.
    """
    _default_signals()
    sys.path.extend(folder for folder in path if folder not in sys.path)
    importlib.invalidate_caches()
    worker = os.getpid()
    try:
        end = ended(_called(find(target), target, model, tokenizer, report))
    except BaseException as error:  # noqa: BLE001 - the user's code, SystemExit and INT included
        end = _raised(error)
    _flush()
    if os.getpid() != worker:  # a child that the job has forked and let return is no second worker
        os._exit(end.code)
    return end


def find(target: str) -> Callable[..., Any]:
    """Import the module and get the function, which may be an attribute of an attribute.

    Raises what the import raises; ImportError that says where was looked, AttributeError,
    TypeError for what cannot be called as a job.
    """
    name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the job's module imports
        places = ", ".join(sys.path)
        text = f"no module {error.name} for BOOT_JOB={target}; looked in {places}"
        raise ModuleNotFoundError(text, name=error.name) from error
    try:
        function = operator.attrgetter(attribute)(module)
    except AttributeError as error:
        # The place too: another package of the same name may stand first on the path.
        place = getattr(module, "__file__", None) or "a folder without __init__.py"
        text = f"no {attribute} in {name} ({place}) for BOOT_JOB={target}"
        raise AttributeError(text) from error
    _require_job(function, attribute)
    return function  # type: ignore[no-any-return] # an attribute of the user's


def _require_job(function: Any, name: str) -> None:
    """Refuse what a call would not run: its body would never start, and look like a success."""
    if not callable(function):
        raise TypeError(f"{name} must be a function of {ASKED}, and is {_kind(function)}")
    called = inspect.unwrap(function)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(f"{name}() must be a plain function: call asyncio.run inside it")
    if inspect.isgeneratorfunction(called):
        raise TypeError(f"{name}() must be a plain function, and holds a yield")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # something built in that does not tell; the call will
    try:
        signature.bind(*JOB_ARGUMENTS)
    except TypeError as error:
        raise TypeError(f"{name}() must take {ASKED}, and takes {signature}: {error}") from error


def _called(
    function: Callable[..., Any], target: str, model: Any, tokenizer: Any, report: object
) -> object:
    result: object = function(model, tokenizer, report)
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # no warning that it was never awaited
        raise TypeError(f"{target} returned {_kind(result)}, so that its body has not run")
    return result


def ended(result: object) -> JobEnd:
    """A return value as an exit status. True and None are 0, False is 1, other objects are 0."""
    if result is None or isinstance(result, bool):
        return JobEnd(str(result), None, 0 if result is not False else 1)
    if not isinstance(result, int):
        return JobEnd(_kind(result), None, 0)
    if 0 <= result <= LARGEST_CODE:
        return JobEnd(str(int(result)), None, int(result))
    return JobEnd(
        f"{_number(result)}, which is no exit status (0 to {LARGEST_CODE})", None, UNCAUGHT
    )


def _number(value: int) -> str:
    """Python refuses to write very long numbers in decimals."""
    return one_line(f"{value:#x}" if value.bit_length() > _LONG_BITS else f"{value}")


def _raised(error: BaseException) -> JobEnd:
    if isinstance(error, SystemExit):
        return _left(error)
    if error.__traceback__ is not None:  # without our own frame
        error.__traceback__ = error.__traceback__.tb_next
    _say("".join(traceback.format_exception(error)))
    code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else UNCAUGHT
    return JobEnd(None, _told(error), code)


def _left(error: SystemExit) -> JobEnd:
    """As the interpreter does it: None is 0, a number its low byte, all else is printed and 1."""
    if error.code is None or isinstance(error.code, int):
        code = int(error.code or 0)
        low = code & LARGEST_CODE if code.bit_length() < _LONG_BITS else LARGEST_CODE
        return JobEnd(None, f"SystemExit: {_number(code)}", low)
    text = "".join(traceback.format_exception_only(error)).partition(": ")[2]
    _say(text)
    return JobEnd(None, one_line(f"SystemExit: {text.rstrip()}", _LONGEST), UNCAUGHT)


def _told(error: BaseException) -> str:
    """Type and text on one line, with the innermost cause where there is one."""
    *_, innermost = causes(error)
    behind = "" if innermost is error else f" (innermost cause: {_line(innermost)})"
    return one_line(_line(error), _LONGEST) + one_line(behind, _LONGEST)


def _line(error: BaseException) -> str:
    """By the traceback module, which also bears a `__str__` that raises."""
    text = traceback.format_exception_only(error)
    return " ".join(next(line for line in text if not line.startswith(" ")).split())


def _kind(value: object) -> str:
    kind = type(value)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"an object of type {name}"


def _default_signals() -> None:
    """The guard ignores INT, which the job is to get as any Python program gets it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, signal.SIG_DFL)


def adopt_stdout(descriptor: int) -> None:
    """Make this descriptor the process's standard output, for Python, C and child processes.

    What was printed before goes where it went before. The descriptor itself is closed.
    """
    _flush()
    os.dup2(descriptor, 1)  # inheritable, as standard streams are
    os.close(descriptor)
    # Buffered as the interpreter would have done it, had it started with this output.
    on_terminal = os.isatty(1)
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream is sys.__stdout__:
        stream.reconfigure(line_buffering=on_terminal)
    else:  # a library has put something of its own there
        buffering = 1 if on_terminal else -1
        sys.stdout = os.fdopen(1, "w", buffering, encoding="utf-8", closefd=False)


def wind_up() -> None:
    """What the interpreter does before it goes: wait for threads, run the exit functions.

    For a process that leaves by `os._exit` after a job: loggers upload in exit functions, executors
    finish what they hold. It takes as long as the job's own code makes it take.
    """
    try:
        # The only ones that do it in the interpreter's order: hooks of executors, threads, atexit.
        threading._shutdown()  # type: ignore[attr-defined]
    except KeyboardInterrupt:
        traceback.print_exc()  # the interpreter stops waiting, too, and goes on
    atexit._run_exitfuncs()
    _flush()


def _say(text: str) -> None:
    """To standard error, whatever the job has put in its place."""
    stream = sys.stderr if isinstance(sys.stderr, io.TextIOWrapper) else sys.__stderr__
    if stream is not None:
        put(stream, text)


def _flush() -> None:
    """Nothing printed is lost by `os._exit`; a stream that the job has put there is its own."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if isinstance(stream, io.TextIOWrapper):
            try:
                stream.flush()
            except ValueError:
                continue  # closed or detached by the job
            except OSError as error:
                _say(f"lost what was printed last: {error}\n")
                # Whoever flushes again finds it done.
                with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), stream.fileno())
