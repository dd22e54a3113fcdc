"""How a child ended that did not say so: by a death or at a deadline. Told to the journal."""

from __future__ import annotations

import signal

from app import deaths, lateness
from app.child import Child
from app.exits import exit_code
from app.facts.process import Death
from app.facts.words import signal_name
from app.heartbeat import Heartbeat
from app.journal import Journal
from app.outcome import Fault, Finding, Status, unread
from app.probes.memory import oom_facts
from app.probes.process import waits
from app.report import Crash
from app.signals import ENDING, Signals
from app.watch import Watch

# Ends that no program chooses.
_CRASHES = frozenset(
    (
        *(signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL),
        *(signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP, signal.SIGXFSZ, signal.SIGXCPU),
    )
)
# Of the guard there is nothing to save: a TERM is only for what wants to remove its own files.
_GUARD_TERM_S = 1.0


class Endings:
    """Made before the first child, for the account of memory as it was then."""

    def __init__(
        self, journal: Journal, watch: Watch, heart: Heartbeat, signals: Signals, grace_s: float
    ) -> None:
        self._journal, self._watch, self._heart = journal, watch, heart
        self._signals, self._grace_s = signals, grace_s
        self._memory = oom_facts()

    def died(self, child: Child, protocol: str, *, on_device: bool) -> None:
        """Note why it is gone, or what it said that is no event. Raises Interrupted."""
        where = self._journal.current
        if child.who == "worker":
            self._journal.memory(worker_peak_bytes=self._heart.peak_bytes)
        self._watch.end(child, 0)
        self._watch.drain(child)
        if not protocol:
            asked = self._was_asked(child)
            if (where == "job" and self._job_left(child)) or asked:
                return
        death = Death(
            who=child.who,
            signal=None if protocol else child.killed_by,
            exit_code=None if protocol else child.exit_code,
            protocol=protocol,
            on_device=on_device,
            before=self._memory,
            after=oom_facts(),
            rss_peak_bytes=self._heart.peak_bytes,
            trace=child.trace(),
            output=child.last_lines(),
        )
        finding = deaths.judge(death)
        self._close_job(where, finding)
        self._journal.crashed(finding, deaths.crash_of(death, where))

    def late(self, child: Child, limit: str) -> None:
        """Note where it stands, while it still stands there; then end it."""
        journal = self._journal
        where = journal.current
        journal.say(f"{limit} s are over: asking the {child.who} where it is, then ending it")
        seconds, kernel = journal.stage_seconds(), waits(child.pid)
        activity = self._heart.beat(child.pid)
        journal.activity(activity)
        stacks = self._watch.stacks(child)
        grace = self._grace_s if where == "job" else min(_GUARD_TERM_S, self._grace_s / 2)
        gone = self._watch.end(child, grace)
        crash = lateness.crash_of(where, limit, stacks, kernel, child.last_lines())
        finding = lateness.judge(where, limit, seconds, activity, crash, gone=gone)
        self._close_job(where, finding)
        journal.crashed(finding, crash)

    def _close_job(self, where: str, finding: Finding) -> None:
        """A job that was ended has a time and a status too."""
        if where == "job" and finding.fault is not None:
            spent = round(self._journal.stage_seconds(), 3)
            self._journal.job(duration_s=spent, code=int(exit_code(finding.fault)))

    def stuck(self, child: Child, seconds: float) -> None:
        """Note that KILL does not end it, which has done its work."""
        text = f"the {child.who} was killed and is still there after {seconds:g} s"
        finding = unread(
            f"{text}: device memory is not free for the command",
            expected="the end of a killed process within seconds",
            actual=f"there after {seconds:g} s",
            next_step="take another node, and look at this one's kernel log",
            fault=Fault.NODE_UNFIT,
        )
        crash = Crash(where="job", kind="deadline", text=text, kernel=waits(child.pid))
        self._journal.crashed(finding, crash)

    def note_memory(self) -> None:
        """What the kernel says of our control group by now."""
        now, before = oom_facts(), self._memory.kills
        kills = None if now.kills is None or before is None else now.kills - before
        self._journal.memory(cgroup_peak_bytes=now.peak_bytes, oom_kills=kills)

    def _was_asked(self, child: Child) -> bool:
        """Whether the signal that killed it is one that we were, or are being, sent as well.

        Slurm signals every process of a step, and the child's may come a moment before ours.
        """
        if child.killed_by not in ENDING:
            return False
        self._watch.await_signal()
        self._signals.check()
        return bool(self._signals.received)

    def _job_left(self, child: Child) -> bool:
        """Whether the job ended by its own doing: an exit past the interpreter, or a signal.

        One that it has no handler for, which a shell tells as 128 and its number; a crash or a KILL
        is none.
        """
        code, how, number = child.exit_code, "os._exit", child.killed_by
        if number is not None and number not in _CRASHES:
            code, how = 128 + number, f"no handler for {signal_name(number)}"
        if code is None:
            return False
        if (returned := self._journal.job_code) is not None:  # its threads or exit functions
            code = returned
        else:
            spent = round(self._journal.stage_seconds(), 3)
            self._journal.job(raised=f"exit {code} ({how})", code=code, duration_s=spent)
        status = Status.FAIL if code else Status.PASS
        self._journal.stage_finished("job", status, f"the job ended with {code} ({how})")
        return True
