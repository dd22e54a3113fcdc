"""From the environment to settings, or to everything that is wrong with it, at once.

`load_settings` takes the environment as an argument: nothing here reads `os.environ`, and `.env`
files are not read. Where a variable and a secret file of the same name exist, the variable counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource

from app.image import Image
from app.known_secrets import SECRETS_DIR
from app.profiles import PROFILES
from app.redaction import redacted
from app.settings_agreement import stops_early, two_to_run
from app.settings_errors import Problem, SettingsError, shown
from app.settings_inherited import inherited_problems
from app.settings_model import DISAGREE, REPORT_DIR, BootSettings, rule_of, variable_of
from app.settings_names import unknown_names
from app.settings_secrets import OLD_TOKEN, TOKEN, read_secret_files, token_of

__all__ = ["BootSettings", "Problem", "SettingsError", "load_settings", "report_dir_of"]

# Variable -> field.
_FIELDS = {variable_of(field): field for field in BootSettings.model_fields}
_HARDWARE = variable_of("hardware")
_SECRETS = frozenset((TOKEN,))


class _Given(EnvSettingsSource):
    """pydantic-settings' source of variables, over a mapping in place of `os.environ`."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(BootSettings)
        # Names were compared exactly before; the source itself looks for lower-case ones.
        self.env_vars = {variable.lower(): value for variable, value in variables.items()}


def load_settings(
    environ: Mapping[str, str],
    *,
    image: Image | None,
    secrets_dir: Path | None = SECRETS_DIR,
    command: bool = False,
) -> BootSettings:
    """The settings of this boot. Raises SettingsError with every problem there is.

    Inside an image the hardware is the image's, unless a rehearsal is asked for. `command` says
    whether the command line names one to run after the pass.
    """
    files = read_secret_files(secrets_dir, _FIELDS)
    given = files.values | {name: environ[name] for name in _FIELDS if name in environ}
    given.pop(TOKEN, None)
    token = token_of(environ, files.values)
    if token is not None:
        given[TOKEN] = token
    tokens = (environ.get(TOKEN), environ.get(OLD_TOKEN), files.values.get(TOKEN))
    hidden = tuple(one.strip() for one in tokens if one)
    if image is not None:
        given.setdefault(_HARDWARE, image.profile)
    # Misspelt names first: they are often why another one is missing.
    unknown = unknown_names(dict.fromkeys(files.names, "") | dict(environ), _FIELDS, hidden)
    in_files = files.names - environ.keys()
    problems = [
        replace(one, actual=f"unknown (the file {secrets_dir}/{one.name})")
        if one.name in in_files
        else one
        for one in unknown
    ]
    sources = {name: path for name, path in files.paths.items() if not _is_set(name, environ)}
    settings, wrong = _validated(given, hidden, sources)
    problems += wrong
    problems += _image_problems(given[_HARDWARE], image) if image is not None else []
    problems += _beside_command(given) if command else []
    problems += _pasted(given, hidden, {problem.name for problem in problems})
    problems += files.problems
    problems += inherited_problems(environ, hidden)
    if settings is None or problems:
        raise SettingsError(problems)
    return settings


def _is_set(name: str, environ: Mapping[str, str]) -> bool:
    """Whether the variable counts, and not the file; an empty token is none to the hub."""
    if name == TOKEN:
        return bool(environ.get(TOKEN) or environ.get(OLD_TOKEN))
    return name in environ


def with_secret_files(
    environ: Mapping[str, str], secrets_dir: Path | None = SECRETS_DIR
) -> Mapping[str, str]:
    """The environment, and the files of secrets in the place of variables that are not set."""
    return read_secret_files(secrets_dir, _FIELDS).values | dict(environ)


def report_dir_of(environ: Mapping[str, str]) -> Path:
    """Where to report that the settings are wrong, read without judging anything else."""
    variable = variable_of("report_dir")
    try:
        return Path(str(rule_of("report_dir").parse(environ[variable])))
    except (KeyError, ValueError):
        return REPORT_DIR


def _validated(
    given: Mapping[str, str], hidden: tuple[str, ...], sources: Mapping[str, Path]
) -> tuple[BootSettings | None, list[Problem]]:
    """The settings, or what is wrong with single ones and then with those that are left.

    pydantic judges fields together only when each is valid, so the rest is judged once more with
    defaults in place of what is wrong: a default never disagrees with anything.
    """
    settings, errors = _built(given)
    single = [error for error in errors if error["type"] != DISAGREE]
    problems = [_problem(str(error["loc"][0]), given, hidden, sources) for error in single]
    if single:
        wrong = {_variable(str(error["loc"][0])) for error in single}
        rest = {name: value for name, value in given.items() if name not in wrong}
        errors = _built({_HARDWARE: next(iter(PROFILES))} | rest)[1]
    for error in errors:
        if error["type"] == DISAGREE:
            problems += error["ctx"]["problems"]
    return settings, problems


def _built(given: Mapping[str, str]) -> tuple[BootSettings | None, list[ErrorDetails]]:
    try:
        return BootSettings(**_Given(given)()), []
    except ValidationError as error:
        return None, error.errors(include_url=False, include_input=False)


def _variable(location: str) -> str:
    """The variable of an error's location, which is the field or its alias."""
    return location if location in _FIELDS else variable_of(location)


def _problem(
    location: str,
    given: Mapping[str, str],
    hidden: tuple[str, ...],
    sources: Mapping[str, Path],
) -> Problem:
    variable = _variable(location)
    rule = rule_of(_FIELDS[variable])
    if variable not in given:
        step = f"set it to {rule.must}; only an image knows its own"
        return Problem(variable, rule.must, "not set", step)
    value = given[variable]
    if value == "":
        actual = "empty"
    elif variable in _SECRETS:
        actual = "something else (not shown)"
    else:
        actual = shown(value, hidden)
    source = sources.get(variable)
    if source is not None:
        # No variable is set, so whoever looks for it in the environment finds nothing.
        step = f"correct or remove the file {source}"
        return Problem(variable, rule.must, f"{actual} (from {source})", step)
    return Problem(variable, rule.must, actual, rule.suggestion(value))


def _pasted(
    given: Mapping[str, str], hidden: tuple[str, ...], named: Collection[str]
) -> list[Problem]:
    """Valid values with a secret in them: they would go into report and log."""
    return [
        Problem(
            name,
            expected="free of secrets",
            actual="something with a secret in it (not shown)",
            suggestion=f"give the token in {TOKEN} only",
        )
        for name, value in given.items()
        if name not in _SECRETS and name not in named and redacted(value, hidden) != value
    ]


def _beside_command(given: Mapping[str, str]) -> list[Problem]:
    """What would keep the command from running: two things to run, or an end before both."""
    if problems := two_to_run(given.get(variable_of("job"))):
        return problems
    stage = given.get(variable_of("stop_after"))
    known = rule_of("stop_after").choices
    return stops_early(stage, "where a command follows --") if stage in known else []


def _image_problems(hardware: str, image: Image) -> list[Problem]:
    """Whether the image was built for this hardware; on a CPU any image can rehearse."""
    profile = PROFILES.get(hardware)
    if profile is None or profile.rehearsal or hardware == image.profile:
        return []
    return [
        Problem(
            _HARDWARE,
            expected=f"{image.profile}, which this image was built for, or a rehearsal on cpu",
            actual=shown(hardware),
            suggestion=f"run the image for {profile.name}, or unset {_HARDWARE}",
        )
    ]
