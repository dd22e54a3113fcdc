"""Which names are ours: misspelt `BOOT_*` variables, and those that an orchestrator adds by itself.

A leaf: imports only `app.redaction` and `app.settings_errors`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from app.redaction import redacted
from app.settings_errors import Problem

PREFIX = "BOOT_"
# What a boot hands to the command that it becomes, which may be a boot itself. All of them are
# there then; one alone is a person's mistake, and would silently do nothing.
HANDED_OVER = ("BOOT_REPORT_PATH", "BOOT_VERDICT", "BOOT_COMPUTE_DTYPE", "BOOT_MODEL_PATH")

# Kubernetes describes each Service of the namespace in the variables of each container, Docker's
# old links do alike: a Service named boot-h100 gives BOOT_H100_SERVICE_HOST, BOOT_H100_PORT and so
# on. These endings are unmistakable.
_SERVICE = re.compile(
    r"BOOT(_[A-Z0-9_]+)?"
    r"(_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
# <SERVICE>_PORT alone could be a typo: its value or its neighbour decides. Docker adds <LINK>_NAME
# and <LINK>_ENV_<VARIABLE>, which only count beside such a _PORT.
_PORT = re.compile(r"(?P<service>BOOT(_[A-Z0-9_]+)?)_PORT")
_PORT_VALUE = re.compile(r"(tcp|udp|sctp)://[^\s/]+:[0-9]+")
_LINK = re.compile(r"(?P<service>BOOT(_[A-Z0-9_]+?)?)_(NAME|ENV_.+)")

# One stem shares at least this much with what was meant: BOOT_MODEL_ID finds BOOT_BASE_MODEL_ID
# (0.76), BOOT_SEQ_LEN finds BOOT_MAX_SEQ_LENGTH (0.67), BOOT_TARGET finds nothing.
_NEAR = 0.6
_SHOWN = 64
# Deadlines share an ending that is longer than what tells them apart: only the rest is compared.
_DEADLINE = re.compile(r"(?P<of>.*?)_?TIMEOUT(_.{0,12})?")
_DEADLINE_END = "_TIMEOUT_S"
_ALL = "TOTAL"  # what a deadline without a stage means


def is_service_variable(name: str, environ: Mapping[str, str]) -> bool:
    """Whether Kubernetes or Docker wrote this variable, and not a person."""
    if _SERVICE.fullmatch(name):
        return True
    if port := _PORT.fullmatch(name):
        beside = f"{port['service']}_SERVICE_HOST" in environ
        return beside or _PORT_VALUE.fullmatch(environ.get(name, "")) is not None
    link = _LINK.fullmatch(name)
    return link is not None and (
        _PORT_VALUE.fullmatch(environ.get(f"{link['service']}_PORT", "")) is not None
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known variable that a misspelt name most likely means."""
    stems = {variable.removeprefix(PREFIX): variable for variable in known}
    stem = name.upper().strip().removeprefix(PREFIX)[:_SHOWN]
    if deadline := _DEADLINE.fullmatch(stem):
        stems = {
            one.removesuffix(_DEADLINE_END): variable
            for one, variable in stems.items()
            if one.endswith(_DEADLINE_END)
        }
        stem = deadline["of"] or _ALL
    near = get_close_matches(stem, stems, n=1, cutoff=_NEAR)
    return stems[near[0]] if near else None


def printable_name(name: str, secrets: Iterable[str] = ()) -> str:
    """A name on one short line; a secret pasted into it does not show."""
    text = redacted(name, secrets)
    return text[:_SHOWN] if text[:_SHOWN].isprintable() else ascii(text[:_SHOWN])[1:-1]


def unknown_names(
    environ: Mapping[str, str], known: Collection[str], secrets: Collection[str] = ()
) -> list[Problem]:
    """One problem for each name that begins like ours and is not.

    Lower-case names are not ours, but one that differs from ours in nothing else is a misspelling:
    it would have no effect, silently. Values are never shown: they may be secrets.
    """
    problems = []
    inherited = HANDED_OVER if all(name in environ for name in HANDED_OVER) else ()
    for name in sorted(environ):
        if name in known or name in inherited or not name.upper().startswith(PREFIX):
            continue
        near = nearest(name, known)
        if name.startswith(PREFIX):
            if is_service_variable(name, environ):
                continue
        elif near is None:
            continue
        if name in HANDED_OVER:
            suggestion = "unset it: a boot hands it to the command after it, and does not read it"
        elif near:
            suggestion = f"did you mean {near}?"
        else:
            suggestion = "unset it, or look for its name in --help"
        problems.append(
            Problem(
                printable_name(name, secrets),
                expected="the name of a setting",
                actual="unknown",
                suggestion=suggestion,
            )
        )
    return problems
