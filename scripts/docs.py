"""Writes what the documentation takes from the code: the report's schema and README's tables.

`make docs` runs it; a test fails when it would change anything.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app.catalogue import Entry, entries  # noqa: E402 - the root has to be on the path first
from app.exits import ACTIONS  # noqa: E402
from app.report import json_schema  # noqa: E402
from app.usage import settings_table_markdown  # noqa: E402

SCHEMA = ROOT / "docs" / "boot-report.schema.json"
README = ROOT / "README.md"
CHECKS = ROOT / "docs" / "checks.md"

_CHECKS_HEAD = """\
# Checks

Every id that a record in the report's `checks` can have, with what usually makes it fail and what
to do then. Made by `make docs`; `python -m app.report explain CHECK_ID` prints one of them. The
exit status is the usual one of a failure: a finding that knows better says so (a full disk is not
a missing right), and `-` fails no boot. Statuses: [README](../README.md#exit-status).
"""


def exit_table_markdown() -> str:
    """The exit codes with what each orchestrator should do, as a Markdown table."""
    rows = [
        "| code | name | means | retry | Kubernetes | Slurm |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {int(code)} | {code.name} | {action.meaning} | {action.retry} "
        f"| {action.kubernetes} | {action.slurm} |"
        for code, action in ACTIONS.items()
    ]
    return "\n".join(rows) + "\n"


def checks_markdown() -> str:
    """All ids by stage, each with question, source, cause, fix and exit status."""
    stages: dict[str, str] = {}
    for entry in entries():
        stages[entry.stage] = stages.get(entry.stage, "") + f"\n{_entry_markdown(entry)}"
    return _CHECKS_HEAD + "".join(f"\n## {stage}\n{text}" for stage, text in stages.items())


def _entry_markdown(entry: Entry) -> str:
    code = "-" if entry.code is None else f"{int(entry.code)} {entry.code.name}"
    return (
        f"### `{entry.id}`\n\n{entry.asks}\n\n"
        f"- **exit** {code}\n- **source** {entry.source}\n"
        f"- **cause** {entry.cause}\n- **fix** {entry.fix}\n"
    )


def with_tables(readme: str) -> str:
    """The README with the text between its markers made anew."""
    tables = {"settings": settings_table_markdown(), "exits": exit_table_markdown()}
    for name, table in tables.items():
        begin, end = f"<!-- {name}: made by make docs -->", f"<!-- {name} end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(readme):
            raise ValueError(f"README.md has no place for {name}: {begin} ... {end}")
        text = f"{begin}\n{table.rstrip()}\n{end}"
        readme = pattern.sub(lambda _match, text=text: text, readme)  # type: ignore[misc]
    return readme


def documents() -> dict[Path, str]:
    """Every made document with the text it should have."""
    return {
        SCHEMA: json.dumps(json_schema(), indent=2) + "\n",
        CHECKS: checks_markdown(),
        README: with_tables(README.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
