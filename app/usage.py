"""The text of `--help` and the README's table, both made from the class of the settings."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from app.exits import ACTIONS
from app.settings_deadlines import TIMED_STAGES, DeadlineSettings, field_of
from app.settings_inherited import REFUSED, REFUSED_PREFIX
from app.settings_model import BootSettings, rule_of, variable_of
from app.settings_names import HANDED_OVER, PREFIX

WIDTH = 100
_INDENT = " " * 6

_HEAD = """\
usage: python -m app.boot [--help] [-- command args...]

Boots a 4-bit LoRA fine-tuning model, proves that hardware, software, weights and precision are what
was asked for, writes boot-report.json and exits with a status an orchestrator can act on.

{after}

Settings are environment variables. Each can also be a file of its name in /run/secrets; the
variable counts where there are both. Names are exact, empty values are errors, and so are BOOT_
variables that do not exist (those that Kubernetes writes for its Services are left alone).
"""
_FOREIGN = """\
HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE, CUDA_VISIBLE_DEVICES and the other variables of the ecosystem
keep their names and their meaning. HUGGING_FACE_HUB_TOKEN is read where HF_TOKEN is unset or empty.
WORLD_SIZE or SLURM_STEP_NUM_TASKS above 1 is an error: jobs of several ranks are not supported yet.
"""


def _plain(value: object) -> str:
    """A default as one would write it in an environment."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int | Path) else ""


def _rows() -> list[tuple[str, str, str, str]]:
    """Variable, what it must be, default and meaning of each setting; stages' deadlines in one."""
    fields = BootSettings.model_fields
    of_stages = {field_of(stage): stage for stage in TIMED_STAGES}
    rows = {
        name: (
            variable_of(name),
            rule_of(name).must,
            "the image's, else required" if field.is_required() else _plain(field.default),
            field.description or "",
        )
        for name, field in fields.items()
        if name not in of_stages
    }
    defaults = [f"{stage} {_plain(fields[name].default)}" for name, stage in of_stages.items()]
    family = (
        f"{PREFIX}<STAGE>_TIMEOUT_S",
        rule_of(next(iter(of_stages))).must,
        "by stage",
        f"Deadline of one stage, from its start. By default {', '.join(defaults)}.",
    )
    # The class has its deadlines first; who reads wants to know first what is booted.
    times = [rows.pop(name) for name in DeadlineSettings.model_fields if name in rows]
    others = list(rows.values())
    place = list(rows).index("report_dir")
    return [*others[:place], family, *times, *others[place:]]


def _after() -> str:
    """What follows a pass."""
    text = (
        "After a pass the function that BOOT_JOB names is called in the same process; or the"
        " command after -- takes the place of the boot, with the device's memory free and"
        f" {', '.join(HANDED_OVER)} in its environment."
    )
    return "\n".join(wrap(text, WIDTH, break_on_hyphens=False))


def _paragraph(text: str) -> list[str]:
    return wrap(
        text, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def _settings() -> list[str]:
    lines = []
    for variable, must, default, meaning in _rows():
        lines.append(f"  {variable:<36}default: {default}")
        lines += _paragraph(f"Must be {must}.") + _paragraph(meaning)
    return lines


def _refused() -> list[str]:
    lines = [f"  {REFUSED_PREFIX}*, all of them, and"]
    lines += [f"  {name:<45}{reason}" for name, reason in REFUSED.items()]
    return [part for line in lines for part in wrap(line, WIDTH, subsequent_indent=" " * 47)]


def _exits() -> list[str]:
    return [
        f"  {code.value:>3} {code.name:<17}{action.meaning}; retry: {action.retry}"
        for code, action in ACTIONS.items()
    ]


def usage_text() -> str:
    """All of `--help`, in lines of at most `WIDTH` characters."""
    parts = (
        [_HEAD.format(after=_after()), "Settings:"],
        _settings(),
        ["", _FOREIGN, "Refused, because they change what is trained:"],
        _refused(),
        ["", "Exit status:"],
        _exits(),
    )
    return "\n".join(line for part in parts for line in part) + "\n"


def settings_table_markdown() -> str:
    """The settings as a table for the README."""
    head = ("variable", "must be", "default", "meaning")
    rows = [head, ("---",) * len(head)]
    rows += [(f"`{name}`", must, f"`{default}`", text) for name, must, default, text in _rows()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
