"""The settled report as Prometheus text, for a node exporter's textfile collector.

Labels are few and short: stages and statuses are fixed, and the one series with a run's name in it
is there once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.exits import ExitCode
from app.outcome import Status
from app.report import Report

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LABEL_CHARACTERS = 128  # of a value; what is longer is no name


class _Found:
    """Metrics as they are, in the place of prometheus_client's counters.

    Those keep their values in files where PROMETHEUS_MULTIPROC_DIR is set for the job.
    """

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found


def metrics(report: Report) -> str:
    """The text of the metrics file. Takes 80 ms and 12 MB for the import: only where asked for."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Found([*_of_the_boot(report), *_of_stages(report), *_of_memory(report)]))
    return generate_latest(registry).decode("utf-8")


def _of_the_boot(report: Report) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    if report.exit is None or report.verdict is None:
        raise AssertionError("only a settled report has metrics")
    labels = {
        "version": report.identity.bootguard,
        "profile": str(report.settings.get("hardware", "")),
        "verdict": report.verdict.value,
        "exit": report.exit.name,
        "state": report.state.value,
        "rehearsal": str(report.rehearsal).lower(),
        "run_id": report.run_id or "",
        "node": report.identity.hostname,
    }
    short = {name: value[:_LABEL_CHARACTERS] for name, value in labels.items()}
    yield InfoMetricFamily("bootguard", "The last boot on this node.", value=short)
    values = {
        "success": ("Whether the guard let the job start.", report.exit.code == ExitCode.OK),
        "exit_code": (
            "Exit status of the boot, the job's own once it ran.",
            report.exit.process_code,
        ),
        "attempt": ("Which attempt of its run the boot was; 1 is the first.", report.attempt),
        "duration_seconds": ("Time from start to verdict.", report.duration_s),
        "end_timestamp_seconds": ("When the boot ended, in seconds since 1970.", report.ended),
    }
    for name, (text, value) in values.items():
        yield GaugeMetricFamily(f"bootguard_{name}", text, value=float(value))
    if report.job is not None and report.job.code is not None:
        text = "Exit status that the job's end amounts to."
        yield GaugeMetricFamily("bootguard_job_exit_code", text, value=float(report.job.code))


def _of_stages(report: Report) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    seconds = GaugeMetricFamily(
        "bootguard_stage_duration_seconds",
        "Time that a stage took; 0 if not run.",
        labels=["stage"],
    )
    status = GaugeMetricFamily(
        "bootguard_stage_status",
        "1 for the status that a stage ended with, 0 for the others.",
        labels=["stage", "status"],
    )
    for stage in report.stages:
        seconds.add_metric([stage.name], stage.duration_s)
        for each in Status:
            status.add_metric([stage.name, each.value], float(stage.status is each))
    checks = GaugeMetricFamily("bootguard_checks", "Checks by status.", labels=["status"])
    counts = Counter(check.status for check in report.checks)
    for each in Status:
        checks.add_metric([each.value], counts[each])
    yield from (seconds, status, checks)


def _of_memory(report: Report) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    if report.memory is None:
        return
    values = {
        "worker_peak_bytes": ("Resident peak of the worker.", report.memory.worker_peak_bytes),
        "cgroup_peak_bytes": ("Peak of the control group.", report.memory.cgroup_peak_bytes),
        "memory_limit_bytes": ("Memory that the boot may use.", report.memory.host_limit_bytes),
        "oom_kills": ("Processes killed for memory during the boot.", report.memory.oom_kills),
    }
    for name, (text, value) in values.items():
        if value is not None:
            yield GaugeMetricFamily(f"bootguard_{name}", text, value=float(value))
