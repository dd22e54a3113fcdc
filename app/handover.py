"""After a pass the boot becomes the user's command: same process, same streams, nothing of ours.

The caller has ended every child, closed the report and flushed the verdict before.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from app.facts.words import one_line
from app.lifeline import adopt_orphans
from app.outcome import Fault, Finding, failed
from app.plan import Plan
from app.report import Report
from app.signals import CHANGEABLE

# What another try later, or a look at the disk, can mend; all else is the command line's.
_FAULTS = {
    errno.EAGAIN: Fault.TEMPORARY,
    errno.ENOMEM: Fault.TEMPORARY,
    errno.ENFILE: Fault.TEMPORARY,
    errno.EMFILE: Fault.TEMPORARY,
    errno.ETXTBSY: Fault.TEMPORARY,
    errno.EIO: Fault.READ_ERROR,
}
_NEXT_STEPS = {
    errno.EACCES: "make it executable (chmod +x), on a volume that is not mounted noexec",
    errno.E2BIG: "hand over fewer or shorter arguments and variables",
    errno.ENOEXEC: "give the script a first line that names its interpreter, or name it yourself: "
    "-- sh script",
}


def environment(
    environ: Mapping[str, str], report: Report, report_path: Path, plan: Plan
) -> dict[str, str]:
    """The command's variables: those of the boot, and what the boot has found.

    `app.settings_names.HANDED_OVER` lists the same names: the command may be a boot.
    """
    if report.verdict is None or plan.resolved is None:
        raise AssertionError("only a boot that has passed hands over")
    return {
        **environ,
        "BOOT_REPORT_PATH": os.path.abspath(report_path),  # noqa: PTH100 - as text, links kept
        "BOOT_VERDICT": report.verdict.value,
        "BOOT_COMPUTE_DTYPE": plan.profile.compute_dtype,
        "BOOT_MODEL_PATH": os.path.abspath(plan.resolved.folder),  # noqa: PTH100 - the same
    }


def hand_over(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    ignored: Collection[int] = (),
    last_look: Callable[[], object] = lambda: None,
) -> NoReturn:
    """Become the command, which is looked for on the PATH of `environ`.

    It gets default signal dispositions but for `ignored`, nothing blocked, and orphans go to init
    again. `last_look` is called when a signal would no more be noted but act: it can still raise.
    Whatever is raised, this process is as before. Main thread only.

    Raises:
        OSError: the command cannot be run; `exec_failure` says it in words.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # broken or closed: no reason to stay
            stream.flush()  # exec drops what is still in a buffer
    with _as_at_the_start(ignored):
        last_look()
        os.execvpe(command[0], list(command), dict(environ))  # noqa: S606 - no shell is the point


@contextmanager
def _as_at_the_start(ignored: Collection[int]) -> Iterator[None]:
    """Without our signal handlers, mask and subreaper; all comes back where exec has failed."""
    # A handler that C has set looks like the default here; exec itself takes it away.
    wanted = {n: signal.SIG_IGN if n in ignored else signal.SIG_DFL for n in CHANGEABLE}
    ours = {n: handler for n in wanted if (handler := signal.getsignal(n)) is not wanted[n]}
    for each in ours:
        signal.signal(each, wanted[each])
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    adopted = adopt_orphans(adopt=False)
    try:
        yield
    finally:
        adopt_orphans(adopt=adopted)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in ours.items():
            if handler is not None:  # None: set before Python, which cannot put it back
                signal.signal(each, handler)


def exec_failure(command: Sequence[str], error: OSError, environ: Mapping[str, str]) -> Finding:
    """Why the command cannot be run, for the report."""
    name, number = one_line(command[0]), error.errno or 0
    found = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    reason = f"{name} cannot be run: {os.strerror(number)}"
    next_step = _NEXT_STEPS.get(number, "see that what follows -- is a program of this machine")
    if number == errno.ENOENT and found is not None:
        # The kernel says the same words for the file and for what its first line names.
        reason = f"{name} cannot be run: its interpreter is not there"
        next_step = f"mend the first line of {one_line(found)}, or the loader it was linked for"
    return failed(
        reason,
        expected="a program that can be run after the boot",
        actual=f"errno {number} ({errno.errorcode.get(number, 'unknown')})",
        next_step=next_step,
        fault=_FAULTS.get(number, Fault.USAGE),
    )
