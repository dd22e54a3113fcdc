"""The worker's last stage: the user's own code, on the guarded model, in the same process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from app.engine import job
from app.events import Order
from app.outcome import Finding, Status, passed
from app.pipe_sink import PipeSink
from app.report import CheckRecord, JobRecord, utc_now

if TYPE_CHECKING:
    from app.work import Work


def run(work: Work, order: Order, stdout: int, sink: PipeSink) -> None:
    """Call the function of the plan, and tell how it ended."""
    target = order.plan.job
    if target is None or order.report is None:
        raise AssertionError("a job is ordered with its target and the report")
    began = time.monotonic()
    record = JobRecord(target=target, started=utc_now())
    sink.stage_started("job")
    job.adopt_stdout(stdout)
    end = job.run(target, work.model, work.tokenizer, order.report, order.job_path)
    # Known before its threads and exit functions are waited for, which may take for ever.
    sink.section("job", _ended(record, end, began))
    job.wind_up()
    sink.section("job", _ended(record, end, began))
    finding = _finding(target, end)
    # The job's status is its own: no fault of the boot's may stand for it.
    told = CheckRecord.of("job", "job.ended", finding).model_copy(update={"fault": None})
    sink.check(told)
    sink.stage_finished("job", finding.status, finding.reason)


def _ended(record: JobRecord, end: job.JobEnd, began: float) -> JobRecord:
    spent = round(time.monotonic() - began, 3)
    ended = {"duration_s": spent, "returned": end.returned, "raised": end.raised, "code": end.code}
    return record.model_copy(update=ended)


def _finding(target: str, end: job.JobEnd) -> Finding:
    how = f"raised {end.raised}" if end.raised else f"returned {end.returned}"
    reason = f"{target} {how}: status {end.code}"
    if end.code == 0:
        return passed(reason)
    return Finding(
        Status.FAIL,
        reason,
        expected="0, or None returned",
        actual=how,
        next_step="read the job's own output, and its traceback in the log",
        source="BOOT_JOB",
    )
