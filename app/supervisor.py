"""The light process: settings, torch-free stages, the report, the worker, the exit status.

Never imports torch. Whatever happens in the worker, this process still writes the report.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence

from app import sections
from app.errors import BootError
from app.events import CheckEnded, Ended, Event, SectionKnown, StageFinished, StageStarted
from app.identity import identity_of, run_of
from app.image import Image, read_image
from app.journal import Journal
from app.log import Log, log_format_of
from app.outcome import Fault, Finding, Status, failed, passed, unread
from app.pipeline import chain, run_stages, unexpected
from app.preflight import Preflight
from app.profiles import PROFILES
from app.redaction import Redactor
from app.report import CheckRecord, Crash, Memory
from app.settings import BootSettings, SettingsError, load_settings, report_dir_of
from app.signals import Interrupted, interruptible, uninterruptible
from app.stages import SUPERVISOR_STAGES, WORKER_STAGES
from app.streams import put
from app.verdict import verdict_line, verdict_table
from app.worker_process import WorkerDied, WorkerProcess

_SECTIONS: dict[str, type[sections.Section]] = {
    "software": sections.Software,
    "precision": sections.Precision,
    "adapter": sections.Adapter,
    "numerics": sections.Numerics,
}

# Stages that no boot of this release has anything to do in. Ranks are refused by the settings.
_NOT_ASKED = {
    "collective": "one process, so there are no ranks to compare",
    "job": "no job is run in this release: the boot ends with its verdict",
}


def supervise(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """One boot from environment to exit status."""
    redactor = Redactor(environ)
    log = Log(log_format_of(environ), redactor)
    journal = Journal(report_dir_of(environ), identity_of(environ), log, redactor)
    journal.note(**run_of(environ))
    stopped_after: str | None = None
    try:
        interruptible()
        settings = _settings_stage(arguments, environ, journal)
        if settings is not None:
            stopped_after = settings.stop_after
            if stopped_after != "settings":
                _run(settings, environ, journal)
    except Interrupted as signal:
        journal.interrupted(signal.name)
    except Exception as error:  # noqa: BLE001 - the boot's edge: a bug must not lose the report
        journal.trouble(journal.current, error)
        journal.crashed(unexpected(error), _crash(journal.current, error))
    uninterruptible()
    code = journal.close(stopped_after=stopped_after)
    put(sys.stdout, verdict_line(journal.report, journal.path) + "\n")
    if log.format == "text":
        put(sys.stderr, verdict_table(journal.report, journal.path))
    return code


def _settings_stage(
    arguments: Sequence[str], environ: Mapping[str, str], journal: Journal
) -> BootSettings | None:
    """Judge command line, image file and settings together; None where any of them is wrong."""
    journal.stage_started("settings")
    # Before anything is judged: also a rehearsal whose settings are wrong says that it is one.
    named = PROFILES.get(environ.get("BOOT_HARDWARE", ""))
    journal.note(rehearsal=named is not None and named.rehearsal)
    records = [_argument(argument) for argument in arguments]
    image: Image | None = None
    settings: BootSettings | None = None
    try:
        image = read_image()
        settings = load_settings(environ, image=image)
    except SettingsError as error:
        records += [_record(problem.name, problem.finding) for problem in error.problems]
    except BootError as error:
        records.append(_record("image", error.finding))
    if image is not None:
        journal.note(image=image.model_dump(mode="json"))
    if settings is not None:
        profile = settings.profile
        journal.note(settings=settings.public(), rehearsal=profile.rehearsal)
        records.append(_record("values", passed(f"profile {profile.name}: {profile.title}")))
    for record in records:
        journal.check(record)
    bad = [record.reason for record in records if record.status.blocks]
    status = Status.FAIL if bad else Status.PASS
    journal.stage_finished("settings", status, "; ".join(bad) or records[-1].reason)
    return None if bad else settings


def _record(name: str, finding: Finding) -> CheckRecord:
    return CheckRecord.of(
        "settings", f"settings.{name}", finding, fault=Fault.CONFIG, source="app/settings.py"
    )


def _argument(argument: str) -> CheckRecord:
    """Only its name is said: the value after `=` may be anything."""
    name = argument.partition("=")[0][:80]
    finding = failed(
        f"unknown argument {name!r}",
        expected="no arguments, or --help",
        actual=name,
        next_step="settings are BOOT_* environment variables: see --help",
        fault=Fault.USAGE,
    )
    return _record("command_line", finding)


def _run(settings: BootSettings, environ: Mapping[str, str], journal: Journal) -> None:
    """Everything after the settings. The worker imports while preflight runs."""
    preflight = Preflight(settings, environ, journal.say)
    stop = settings.stop_after
    worker = None
    if stop not in SUPERVISOR_STAGES:
        worker = WorkerProcess(preflight.plan, environ, journal.worker_said)
    try:
        go_on = run_stages(preflight.stages(), preflight, journal, stop_after=stop)
        journal.note(gpus=preflight.gpus(), memory=preflight.memory())
        if go_on and worker is not None:
            _relay(worker, preflight, journal, stop)
    finally:
        if worker is not None:
            worker.end()
    if journal.blocked or (stop and journal.has_ended(stop)):
        return
    for stage, reason in _NOT_ASKED.items():
        journal.skip(stage, reason)
        if stage == stop:
            return


def _relay(worker: WorkerProcess, preflight: Preflight, journal: Journal, stop: str | None) -> None:
    """Let the worker go and note what it says; its death is a finding too."""
    # From here on the boot waits for the worker's imports, so here its first stage begins.
    journal.stage_started(WORKER_STAGES[0])
    journal.say("importing torch and Unsloth (10 s, or a minute the first time)")
    try:
        for event in worker.run(preflight.plan, stop):
            _note(event, preflight, journal)
    except WorkerDied as death:
        # A native crash with the device in use is the node's until shown otherwise.
        on_device = death.by_signal and preflight.plan.profile.needs_gpu
        finding = unread(
            f"the worker ended without a verdict: {death}",
            next_step="read the worker's last lines, in the report's `crash`",
            fault=Fault.NODE_UNFIT if on_device else Fault.INTERNAL,
        )
        last = worker.last_lines()
        crash = Crash(where=journal.current, kind="worker", text=str(death), traceback=last)
        journal.crashed(finding, crash)


def _note(event: Event, preflight: Preflight, journal: Journal) -> None:
    match event:
        case StageStarted():
            if event.name != journal.current:
                journal.stage_started(event.name)
        case CheckEnded():
            journal.check(event.record)
        case SectionKnown():
            journal.section(event.name, _SECTIONS[event.name].model_validate(event.data))
        case StageFinished():
            journal.stage_finished(event.name, event.status, event.finding)
        case Ended():
            known = preflight.memory() or Memory()
            journal.note(memory=known.model_copy(update={"worker_peak_bytes": event.peak_bytes}))


def _crash(where: str, error: Exception) -> Crash:
    return Crash(
        where=where,
        kind=type(error).__name__,
        text=chain(error),
        traceback=[line.rstrip() for line in traceback.format_exception(error)],
    )
