"""The light process: settings, the report, deadlines, signals, the exit status.

Never imports torch. Whatever happens in a child, this process still writes the report; whatever
happens to a volume or a reader, it still ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence

from app import settings_stage
from app.command_line import CommandLine, parse, trouble
from app.exits import ExitCode
from app.file_writer import FileWriter
from app.guard import Guard
from app.handover import environment, exec_failure, hand_over
from app.identity import identity_of, run_of
from app.journal import Journal
from app.lifeline import adopt_orphans
from app.limits import NEVER, Limits
from app.log import Log, log_format_of
from app.orphans import Orphans
from app.outcome import Fault, Finding, Status, unread
from app.outputs import write_outputs
from app.pipeline import chain, unexpected
from app.redaction import Redactor
from app.report import REPORT_NAME, CheckRecord, Crash
from app.settings import BootSettings, report_dir_of, with_secret_files
from app.signals import Interrupted, Late, Signals
from app.streams import put
from app.verdict import verdict_line, verdict_table

# The settings are files of this machine and take milliseconds; a mount that hangs takes for ever.
_SETTINGS_S = 60.0
# For the last write of a boot that is in no hurry; a network volume may take seconds to sync.
_LAST_WRITE_S = 10.0
_SIDE_FILES_S = 2.0
_VERDICT_S = 2.0
_CHILDREN_S = 10.0  # a driver takes seconds to free the memory of a killed process
_ORPHANS_S = 1.0
_FIRST_LOOK_S = 5.0
_LEAST_S = 0.1
_OF_GRACE = 0.75  # the rest is for what takes its time and no limit: the table, the processes' ends


def supervise(arguments: Sequence[str], environ: Mapping[str, str], signals: Signals) -> int:
    """One boot from environment to exit status; after a hand-over it does not return.

    `signals` are installed already.
    """
    supervisor = Supervisor(environ, signals)
    supervisor.boot(arguments)
    return supervisor.close()


class Supervisor:
    """What all the steps of a boot share."""

    def __init__(self, environ: Mapping[str, str], signals: Signals) -> None:
        self._environ, self._signals = environ, signals
        self._line = CommandLine()
        self._orphans = Orphans()
        adopt_orphans()
        early, redactor = self._first_look()
        self._folder = report_dir_of(early)
        self._log = Log(log_format_of(early), redactor)
        sys.excepthook = self._uncaught
        self._writer = FileWriter(self._folder)
        identity = identity_of(environ)
        self._journal = Journal(self._folder, self._writer, identity, self._log, redactor)
        self._journal.note(**run_of(early))
        self._settings: BootSettings | None = None
        self._guard: Guard | None = None
        self._end = NEVER  # when everything must be over

    def _first_look(self) -> tuple[Mapping[str, str], Redactor]:
        """What must be known before anything can be reported: variables, and files in their place.

        A mount that hangs is left alone here; the settings stage says so.
        """
        try:
            with self._signals.within(_FIRST_LOOK_S):
                return with_secret_files(self._environ), Redactor(self._environ)
        except (Interrupted, Late):
            return self._environ, Redactor(self._environ, None)

    def boot(self, arguments: Sequence[str]) -> None:
        """All stages. Whatever ends them early is in the journal, and every child has ended."""
        journal = self._journal
        try:
            with self._signals.within(_SETTINGS_S):
                self._line = parse(arguments, self._environ)
                self._settings = settings_stage.run(self._environ, self._line, journal)
            if self._settings is not None and self._settings.stop_after != "settings":
                self._run(self._settings)
        except Interrupted as signal:
            journal.interrupted(signal.name)
        except Late as late:
            crash = _crash("settings", late).model_copy(update={"kind": "deadline"})
            journal.crashed(_hung_settings(), crash)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the boot's edge: a bug must not lose the report
            journal.trouble(journal.current, error)
            journal.crashed(unexpected(error), _crash(journal.current, error))

    def _run(self, settings: BootSettings) -> None:
        self._guard = Guard(
            settings,
            self._environ,
            self._journal,
            self._signals,
            command=bool(self._line.command),
            reap=self._reap,
        )
        try:
            self._guard.run()
        finally:
            self._guard.end(self._left(_CHILDREN_S))

    def close(self) -> int:
        """The last report, all that tells of it, and the exit status or the command."""
        if self._signals.received:  # the first one, or one while the children ended
            self._journal.interrupted(self._signals.received[0])
        code = self._closed()
        if self._journal.report.handed_over:
            self._hand_over()
            code = self._closed()
        self._signals.hold()
        return code

    def _closed(self) -> int:
        code = self._written()
        report, path = self._journal.report, self._journal.path
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()  # what somebody's sitecustomize has printed comes first
        put(sys.stdout, verdict_line(report, path) + "\n", patience_s=self._left(_VERDICT_S))
        if self._log.format == "text":
            table = verdict_table(report, path)
            put(sys.stderr, table, patience_s=self._left(_VERDICT_S))
        known = [*self._writer.pids, *self._given_up]
        self._orphans.end(but=known, seconds=self._left(_ORPHANS_S))
        self._clear()
        self._writer.close(self._left(_SIDE_FILES_S))
        return code

    def _clear(self) -> None:
        """Remove what a killed preflight was trying; where one hangs, the next to try would too."""
        if self._guard is not None and self._guard.scratch and not self._given_up:
            with contextlib.suppress(OSError):  # a later boot removes it
                self._writer.remove(self._guard.scratch, self._left(_SIDE_FILES_S))

    @property
    def _given_up(self) -> list[int]:
        return [] if self._guard is None else self._guard.given_up

    def _reap(self, children: Collection[int]) -> None:
        self._orphans.reap(but=[*children, *self._writer.pids])

    @property
    def _grace_s(self) -> float:
        return (Limits() if self._settings is None else self._settings.limits()).grace

    def _left(self, seconds: float) -> float:
        """What a last step may take: of its own time, and of what whoever asks for the end gives.

        Each may have half of that, so that all of them fit.
        """
        now = time.monotonic()
        if self._signals.received and self._end == NEVER:
            self._end = now + _OF_GRACE * self._grace_s
        return max(_LEAST_S, min(seconds, (self._end - now) / 2))

    def _countdown(self, seconds: float) -> Callable[[], float]:
        """The same, running: a request may come in the middle of a step."""
        end = time.monotonic() + seconds
        return lambda: self._left(max(_LEAST_S, end - time.monotonic()))

    def _uncaught(self, _kind: object, error: BaseException, _trace: object) -> None:
        """A bug in the last steps: as a log tells it, without secrets, and with a code of ours."""
        if isinstance(error, SystemExit) and isinstance(error.code, int):  # of PYTHONINSPECT
            os._exit(error.code)
        self._log.traceback("boot", error)
        os._exit(ExitCode.INTERNAL)

    def _written(self) -> int:
        """Write report and side files; the exit status."""
        journal, settings = self._journal, self._settings
        stop = None if settings is None else settings.stop_after
        ready = bool(self._line.command) and journal.ready(stop)
        journal.note(handed_over=ready and self._startable())
        code = journal.close(stopped_after=stop, left=self._countdown(_LAST_WRITE_S))
        for problem in write_outputs(
            journal.report,
            journal.path,
            self._writer,
            environ=self._environ,
            termination_log=None if settings is None else settings.termination_log,
            metrics_file=None if settings is None else settings.metrics_file,
            deadline_s=self._left(_SIDE_FILES_S),
        ):
            journal.say(problem)
        return code

    def _startable(self) -> bool:
        """Looked at once more: the verdict line comes before the command, and must not be wrong."""
        try:
            with self._signals.within(_FIRST_LOOK_S):
                finding = trouble(self._line.command[0], self._environ)
        except (Interrupted, Late):  # told elsewhere, or by the kernel when it comes to that
            return not self._signals.received
        if finding is not None:
            self._not_started(finding)
        return finding is None

    def _not_started(self, finding: Finding) -> None:
        self._journal.check(CheckRecord.of("job", "job.command", finding, source="the kernel"))
        self._journal.stage_finished("job", Status.FAIL, finding.reason)

    def _hand_over(self) -> None:
        """Become the command; returns where a signal came first or the kernel refuses."""
        journal = self._journal
        if self._guard is None or journal.path is None:
            raise AssertionError("a pass has a guard and a report")
        command, plan = self._line.command, self._guard.plan
        # As it is: texts may tell it without a part that looks like a secret.
        path = self._folder / REPORT_NAME
        given = environment(self._environ, journal.report, path, plan)
        failure: OSError | None = None
        try:
            hand_over(command, given, ignored=self._signals.ignored, last_look=self._signals.check)
        except Interrupted as signal:
            journal.interrupted(signal.name)
        except OSError as error:
            failure = error
        if failure is not None:
            self._not_started(exec_failure(command, failure, given))


def _hung_settings() -> Finding:
    return unread(
        f"the settings could not be read within {_SETTINGS_S:g} s",
        expected=f"settings and files of secrets within {_SETTINGS_S:g} s",
        actual="no answer",
        next_step="look at the mounts of /run/secrets and of the image's own files",
        fault=Fault.TEMPORARY,
    )


def _crash(where: str, error: BaseException) -> Crash:
    return Crash(
        where=where,
        kind=type(error).__name__,
        text=chain(error),
        traceback=[line.rstrip() for line in traceback.format_exception(error)],
    )
