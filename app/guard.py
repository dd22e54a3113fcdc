"""Everything of a boot after its settings: preflight beside the worker's imports, guard, job."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter, ValidationError

from app.child import Child, kill
from app.deadlines import Deadlines
from app.endings import Endings
from app.events import (
    CheckEnded,
    Ended,
    Event,
    Order,
    PlanKnown,
    SectionKnown,
    StageFinished,
    StageStarted,
    Turns,
)
from app.facts.scratch import scratch_of
from app.heartbeat import Heartbeat, told
from app.journal import Journal
from app.plan import Plan
from app.probes.gpu_use import GpuUse
from app.probes.job_target import search_path_here
from app.probes.process import sample
from app.report import JobRecord, Report, utc_now
from app.settings import BootSettings
from app.settings_secrets import without_hub_tokens
from app.signals import Signals
from app.spawn import fork_preflight, spawn_worker
from app.stages import SUPERVISOR_STAGES, WORKER_STAGES
from app.watch import ChildDied, DeadlineOver, Watch

_PREFLIGHT_STAGES = SUPERVISOR_STAGES[1:]  # without the settings, which come before any child
_LOG_EVERY_S = 30.0
_RELEASE_S = 30.0  # a driver takes seconds to free and clear the memory of a large model
_NO_RANKS = "one process, so there are no ranks to compare"
_COMMAND = "the command after -- follows in the place of this process"
_NO_JOB = "no job was asked for (BOOT_JOB): the boot ends with its verdict"
_SECTION: dict[str, TypeAdapter[Any]] = {}


class Guard:
    """One boot. `end` must be called, whatever else happens."""

    def __init__(
        self,
        settings: BootSettings,
        environ: Mapping[str, str],
        journal: Journal,
        signals: Signals,
        *,
        command: bool,
        reap: Callable[[Collection[int]], None],
    ) -> None:
        self._reap = reap
        self._command = command
        self._settings, self._environ = settings, environ
        self._journal, self._signals = journal, signals
        self._stop = settings.stop_after
        self.plan: Plan = settings.plan()
        self._deadlines = Deadlines(settings.limits())
        self._gpu: GpuUse | None = None
        self._heart = Heartbeat(sample, self._gpu_use)
        self._watch = Watch(signals, self._beat, self._told)
        self._children: list[Child] = []
        grace = settings.limits().grace
        self._endings = Endings(journal, self._watch, self._heart, signals, grace)
        self._next_line = 0.0
        self._worker_spoke = False
        self._late_device = False
        self.scratch: list[Path] = []  # what a preflight may leave that ends before it says so

    def run(self) -> None:
        """All stages that are asked for, as far as they pass."""
        worker = None
        if self._stop not in SUPERVISOR_STAGES:
            worker = self._start_worker()
        self._run_preflight()
        if worker is None or not self._journal.all_passed(_PREFLIGHT_STAGES):
            return
        if self._late_device:
            # What it has imported may have seen no device, and remembers that.
            self._journal.say("the device came up late: a fresh worker takes over")
            if not self._watch.end(worker, 0):
                self._endings.stuck(worker, _RELEASE_S)
                return
            worker = self._start_worker()
        if self.plan.profile.needs_gpu:
            self._gpu = GpuUse(self._environ)
        # From here on the boot waits for the worker's imports, so here its first stage begins.
        self._begin(WORKER_STAGES[0], worker)
        self._journal.say("importing torch and Unsloth (10 s, or a minute the first time)")
        worker.order(Order(kind="go", plan=self.plan, stop_after=self._stop))
        self._listen(worker, Turns(WORKER_STAGES, self._stop))
        if self._journal.all_passed(WORKER_STAGES) and self._stop not in WORKER_STAGES:
            self._after(worker)

    @property
    def given_up(self) -> list[int]:
        """Children that not even KILL has ended."""
        return [child.pid for child in self._children if child.given_up]

    def end(self, seconds: float) -> None:
        """End and reap every child; one that is still there after that time is left."""
        self._signals.forward = None
        self._endings.note_memory()
        for child in self._children:
            kill(child)
        self._watch.reaped(self._children, seconds)
        for child in self._children:
            child.close()
        if self._gpu is not None:
            if self._gpu.problem:
                self._journal.say(f"GPU use was not sampled: {self._gpu.problem}")
            self._gpu.end()

    def _after(self, worker: Child) -> None:
        """What comes after the guard."""
        self._journal.skip("collective", _NO_RANKS)
        if self._stop == "collective":
            return
        if (target := self.plan.job) is not None:
            self._run_job(worker, target)
        elif not self._command:
            self._journal.skip("job", _NO_JOB)
        elif self._watch.end(worker, 0, _RELEASE_S):
            self._journal.skip("job", _COMMAND)
        else:
            self._endings.stuck(worker, _RELEASE_S)

    def _run_job(self, worker: Child, target: str) -> None:
        """Deadlines end with the guard, and signals are the job's from here on."""
        self._journal.section("job", JobRecord(target=target, started=utc_now()))
        self._begin("job", worker)
        self._deadlines.begin_job()
        self._signals.forward = worker.signal
        report = self._journal.as_it_stands()
        path = search_path_here(self._environ)
        worker.order(Order(kind="job", plan=self.plan, report=report, job_path=tuple(path)))
        self._listen(worker, Turns(("job",)))
        self._journal.job(signals=self._signals.forwarded)
        if self._signals.received:
            # No status 0 after a request to end, whatever the job made of it.
            self._journal.interrupted(self._signals.received[0])

    def _worker_environ(self) -> Mapping[str, str]:
        """The guard loads a folder and asks no hub; a job is the user's own program."""
        return self._environ if self.plan.job else without_hub_tokens(self._environ)

    def _said(self, who: str) -> Callable[[str], None]:
        return partial(self._journal.child_said, who)

    def _start(self, child: Child) -> Child:
        self._children.append(child)
        self._watch.add(child)
        return child

    def _start_worker(self) -> Child:
        worker = self._start(spawn_worker(self._worker_environ(), self._said("worker")))
        worker.order(Order(kind="prepare", plan=self.plan))
        return worker

    def _preflight(self, pipe: BinaryIO) -> None:
        """In the child: what these stages import never becomes a part of the supervisor."""
        from app import preflight

        preflight.run(self._settings, self._environ, self._stop, pipe)

    def _run_preflight(self) -> None:
        self.scratch = scratch_of(self.plan, self._environ)
        child = self._start(fork_preflight(self._preflight, self._said("preflight")))
        # Its first stage begins with it: whatever keeps it from saying so counts too.
        self._begin(_PREFLIGHT_STAGES[0], child)
        self._listen(child, Turns(_PREFLIGHT_STAGES, self._stop))

    def _listen(self, child: Child, turns: Turns) -> None:
        """Note all that it says; its death and its lateness are findings too."""
        try:
            # A job may become another program, whose end is its own.
            own_way = self._journal.current == "job"
            for event in self._watch.events(child, turns, self._deadlines, own_way=own_way):
                self._note(event, child)
        except ChildDied as death:
            self._endings.died(child, death.protocol, on_device=self._on_device(child))
        except DeadlineOver:
            self._endings.late(child, self._deadlines.named())

    def _note(self, event: Event, child: Child) -> None:
        journal = self._journal
        match event:
            case StageStarted():
                self._worker_spoke = child.who == "worker"
                if event.name != journal.current:
                    self._begin(event.name, child)
            case CheckEnded():
                journal.check(event.record)
            case SectionKnown():
                self._section(event)
            case PlanKnown():
                self.plan = event.plan
                self._late_device = event.late_device
            case StageFinished():
                self.scratch = []
                journal.stage_finished(event.name, event.status, event.finding)
            case Ended():
                if child.who == "worker":
                    journal.memory(worker_peak_bytes=event.peak_bytes)

    def _section(self, event: SectionKnown) -> None:
        """Validate it against the report's field of that name."""
        if event.name not in _SECTION:
            _SECTION[event.name] = TypeAdapter(Report.model_fields[event.name].rebuild_annotation())
        try:
            value = _SECTION[event.name].validate_python(event.data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]["msg"]
            raise ChildDied(f"section {event.name} is none: {first}") from error
        self._journal.section(event.name, value)

    def _begin(self, stage: str, child: Child) -> None:
        self._journal.stage_started(stage)
        self._deadlines.begin(stage)
        self._heart.begin(child.pid)
        self._next_line = time.monotonic() + _LOG_EVERY_S

    def _beat(self, child: Child) -> None:
        gpu = [] if self._gpu is None or self._gpu.pid is None else [self._gpu.pid]
        self._reap([*gpu, *(each.pid for each in self._children)])
        activity = self._heart.beat(child.pid)
        self._journal.activity(activity)
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LOG_EVERY_S
            self._journal.say(told(activity, self._journal.stage_seconds()))

    def _told(self, name: str) -> None:
        if self._signals.forward is None:
            self._journal.say(f"{name} received: only a job is told, and none runs yet")
            return
        # At once: whoever sends a TERM may send a KILL next.
        self._journal.say(f"{name} received, and forwarded to the job")
        self._journal.job(signals=list(self._signals.forwarded))
        self._journal.write()

    def _gpu_use(self) -> tuple[int | None, int | None]:
        found = self._gpu.latest() if self._gpu is not None else None
        return (None, None) if found is None else found[:2]

    def _on_device(self, child: Child) -> bool:
        """Whether the GPU may be to blame: its own probe, or a worker past its imports."""
        uses = self._worker_spoke if child.who == "worker" else self._journal.current == "gpu"
        return uses and self.plan.profile.needs_gpu
