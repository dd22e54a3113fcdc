"""Writes what is taken from the code: the report's schema, README's tables, settings for Compose.

`make docs` runs it; a test fails when it would change anything.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import groupby
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app.catalogue import Entry, entries  # noqa: E402 - the root has to be on the path first
from app.exits import ACTIONS  # noqa: E402
from app.report import json_schema  # noqa: E402
from app.settings_deadlines import TIMED_STAGES, DeadlineSettings, field_of  # noqa: E402
from app.settings_model import BootSettings, rule_of, variable_of  # noqa: E402
from app.usage import settings_table_markdown  # noqa: E402

SCHEMA = ROOT / "docs" / "boot-report.schema.json"
README = ROOT / "README.md"
CHECKS = ROOT / "docs" / "checks.md"
COMPOSE = ROOT / "compose.yaml"
EXAMPLE = ROOT / ".env.example"

# Compose gives the report folder its own place in the container.
_FIXED_BY_COMPOSE = ("report_dir",)

_WIDTH = 100

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


def settings_yaml() -> str:
    """Each setting as a variable that Compose passes on where it is set."""
    return "".join(f"  {variable_of(field)}:\n" for field in _fields())


def settings_env() -> str:
    """Each setting as a line for `.env`, commented out: an empty one would be an error.

    As in README's table the times come last; neighbours with the same text share it.
    """
    fields = sorted(_fields(), key=_group)
    blocks = (_env_text(text) + "".join(map(_env_line, of)) for text, of in groupby(fields, _about))
    return "\n".join(blocks)


def _fields() -> list[str]:
    return [field for field in BootSettings.model_fields if field not in _FIXED_BY_COMPOSE]


def _group(field: str) -> int:
    of_stages = map(field_of, TIMED_STAGES)
    return (field in DeadlineSettings.model_fields) + (field in of_stages)


def _about(field: str) -> str:
    return f"{BootSettings.model_fields[field].description} Must be {rule_of(field).must}."


def _env_text(text: str) -> str:
    return "".join(f"# {line}\n" for line in wrap(text, _WIDTH - 2, break_on_hyphens=False))


def _env_line(field: str) -> str:
    info = BootSettings.model_fields[field]
    return f"#{variable_of(field)}={'' if info.is_required() else _env_value(info.default)}\n"


def _env_value(default: object) -> str:
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def with_made(path: Path, comment: str, made: dict[str, str]) -> str:
    """The text of a file with what is between its markers made anew; `comment` frames a marker."""
    text = path.read_text(encoding="utf-8")
    for name, new in made.items():
        begin = comment.format(f"{name}: made by make docs")
        end = comment.format(f"{name} end")
        pattern = re.compile(rf"({re.escape(begin)}\n).*?([ ]*{re.escape(end)})", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{path.name} has no place for {name}: {begin} ... {end}")
        text = pattern.sub(lambda found, new=new: found[1] + new + found[2], text)  # type: ignore[misc]
    return text


def documents() -> dict[Path, str]:
    """Every made document with the text it should have."""
    tables = {"settings": settings_table_markdown(), "exits": exit_table_markdown()}
    return {
        SCHEMA: json.dumps(json_schema(), indent=2) + "\n",
        CHECKS: checks_markdown(),
        README: with_made(README, "<!-- {} -->", tables),
        COMPOSE: with_made(COMPOSE, "# {}", {"settings": settings_yaml()}),
        EXAMPLE: with_made(EXAMPLE, "# {}", {"settings": settings_env()}),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
