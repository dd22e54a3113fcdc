"""The first stage: command line, image file and settings, judged together."""

from __future__ import annotations

from collections.abc import Mapping

from app.command_line import CommandLine
from app.errors import BootError
from app.image import Image, read_image
from app.journal import Journal
from app.outcome import Fault, Finding, Status, passed
from app.profiles import PROFILES
from app.report import CheckRecord
from app.settings import BootSettings, SettingsError, load_settings


def run(environ: Mapping[str, str], line: CommandLine, journal: Journal) -> BootSettings | None:
    """The settings; None where anything is wrong."""
    journal.stage_started("settings")
    # Before anything is judged: also a rehearsal whose settings are wrong says that it is one.
    named = PROFILES.get(environ.get("BOOT_HARDWARE", ""))
    journal.note(rehearsal=named is not None and named.rehearsal)
    records = [_record("command_line", finding) for finding in line.problems]
    image: Image | None = None
    settings: BootSettings | None = None
    try:
        image = read_image()
        settings = load_settings(environ, image=image, command=bool(line.command))
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
