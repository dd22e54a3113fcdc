"""What must hold of every report, whatever the boot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIELDS = ("reason", "expected", "actual", "source", "next_step")


def assert_findings_are_whole(report: Mapping[str, Any]) -> None:
    """Each record that fails a boot says what was expected, what is, who says so and what to do."""
    for record in report["checks"]:
        if record["status"] in ("fail", "error"):
            lacking = [name for name in _FIELDS if not record[name]]
            assert not lacking, (record["id"], lacking, record)
            assert "\n" not in record["reason"], record["id"]
