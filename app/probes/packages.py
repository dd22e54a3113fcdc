"""Reads what is installed: records, origins and requirements, without importing any of it.

Folder names are read and not metadata: `torch-2.14.1.dist-info` holds name and version by the
standard for records, and a list of 130 of them takes half a millisecond.
"""

from __future__ import annotations

import os
import re
import site
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from app.facts.packages import (
    OPTIONAL_PACKAGES,
    REQUIRED_PACKAGES,
    Needs,
    PackagesFacts,
    Shadow,
    canonical,
    compares,
)
from app.plan import Plan
from app.probes.bitsandbytes import probe_bitsandbytes
from app.probes.files import read_bytes
from app.probes.native import probe_native
from app.probes.wheel import package_folder, torch_architectures, torch_build, xformers_build

_RECORD = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-py[^-]*)?\.(?:dist|egg)-info")
_MODULE = re.compile(r"(?P<name>[^\W\d]\w*)(?P<kind>\.py|(?:\.[\w-]+)*\.so)?")
# One requirement, in both spellings: `a>=1,<2; marker` and `a (>=1,<2)`.
_REQUIRES = re.compile(
    r"Requires-Dist: *(?P<on>[\w.-]+)(?:\[[^\]]*\])? *"
    r"\(?(?P<clauses>[^;()]*)\)? *(?:;(?P<marker>.*))?"
)
_MARKER = re.compile(r"""(\w+) *(==|!=|<=|>=|<|>) *['"]([^'"]*)['"]""")
_LARGEST_METADATA = 256 * 1024  # unsloth's has 56 kB of headers
# Names that many projects use for folders of their own, and no part of the stack imports.
_HARMLESS = frozenset(
    ("test", "tests", "docs", "example", "examples", "scripts", "tools", "build", "setup", "app")
)


@dataclass(slots=True)
class _Place:
    """A folder of the search path: its modules, and its records as name -> versions."""

    folder: str
    modules: frozenset[str] = frozenset()
    records: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def probe_packages(
    plan: Plan,
    environ: Mapping[str, str],
    path: Sequence[str] | None = None,
    own: Sequence[str] | None = None,
) -> PackagesFacts:
    """What the worker will import, along the same path as this process.

    `own` are the interpreter's folders for packages, `site.getsitepackages()` by default.
    """
    foreign = path is not None
    path = list(sys.path if path is None else path)
    own = _own_folders() if own is None else own
    places = [_look(entry) for entry in dict.fromkeys(path)]
    records = _first(places)
    modules = {name: package_folder(name, path) for name in REQUIRED_PACKAGES}
    missing = tuple(name for name in REQUIRED_PACKAGES if canonical(name) not in records)
    torch = torch_build(path)
    architectures = torch_architectures(plan.baked, path)[0] if plan.profile.needs_gpu else ()
    bitsandbytes = probe_bitsandbytes(modules["bitsandbytes"], torch, plan, environ)
    libraries = probe_native(modules, bitsandbytes, environ, path)
    return PackagesFacts(
        versions={name: version for name, (version, _) in records.items()},
        missing=missing,
        gone=tuple(
            name
            for name, folder in modules.items()
            if name not in missing and folder is None and (foreign or not _otherwise(name))
        ),
        doubled=_doubled(places),
        shadows=tuple(_shadows(places, own)),
        needs=tuple(_needs(records)),
        torch=torch,
        torch_architectures=architectures,
        bitsandbytes=bitsandbytes,
        xformers=xformers_build(path),
        native=libraries.facts,
        glibc=libraries.glibc,
        libstdcxx=libraries.libstdcxx,
        libstdcxx_by=libraries.libstdcxx_by,
    )


def _own_folders() -> tuple[str, ...]:
    return (*site.getsitepackages(), site.getusersitepackages() if site.ENABLE_USER_SITE else "")


def _otherwise(name: str) -> bool:
    """Whether a finder of an editable install knows the package; a top-level name runs nothing."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _look(folder: str) -> _Place:
    """List a folder; one that cannot be listed has nothing to import either."""
    place, modules = _Place(folder), set()
    try:
        with os.scandir(folder or os.curdir) as entries:
            for entry in entries:
                record = _RECORD.fullmatch(entry.name)
                if record is not None:
                    found = (record["version"], entry.path)
                    place.records.setdefault(canonical(record["name"]), []).append(found)
                elif (module := _MODULE.fullmatch(entry.name)) is not None and (
                    module["kind"] or os.path.isfile(f"{entry.path}/__init__.py")  # noqa: PTH113
                ):
                    modules.add(module["name"])
    except OSError:
        pass
    place.modules = frozenset(modules)
    return place


def _first(places: Iterable[_Place]) -> dict[str, tuple[str, str]]:
    """Version and record of every distribution, from the folder that comes first."""
    found: dict[str, tuple[str, str]] = {}
    for place in places:
        for name, records in place.records.items():
            found.setdefault(name, records[0])
    return found


def _doubled(places: Iterable[_Place]) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(sorted(version for version, _ in records))
        for place in places
        for name, records in place.records.items()
        if len(records) > 1
    }


def _shadows(places: Sequence[_Place], own: Sequence[str]) -> Iterator[Shadow]:
    """What lies before the interpreter's own folders and carries a name that lies in those too."""
    ours = {os.path.realpath(folder) for folder in own if folder}
    user = os.path.realpath(site.getusersitepackages())
    standard = os.path.realpath(Path(os.__file__).parent)
    before: list[_Place] = []
    for place in places:
        real = os.path.realpath(place.folder or os.curdir)
        if real == standard:
            yield from _hidden(before, sys.stdlib_module_names, place.folder, user)
        elif real in ours:
            yield from _hidden(before, place.modules, place.folder, user)
            if real == user:
                before.append(place)
        elif not real.startswith(standard):
            before.append(place)


def _hidden(
    before: Iterable[_Place], names: Iterable[str], folder: str, user: str
) -> Iterator[Shadow]:
    wanted = frozenset(names) - _HARMLESS
    for place in before:
        by = (
            "the user's site"
            if os.path.realpath(place.folder or os.curdir) == user
            else "PYTHONPATH"
        )
        for module in sorted(place.modules & wanted):
            yield Shadow(module, place.folder or os.curdir, by, folder, bool(place.records))


def _needs(records: Mapping[str, tuple[str, str]]) -> Iterator[Needs]:
    """What the required packages say of each other, and of what they need in any case."""
    for name in (*REQUIRED_PACKAGES, *OPTIONAL_PACKAGES):
        record = records.get(canonical(name))
        if record is None:
            continue
        try:
            text, _ = read_bytes(Path(record[1], "METADATA"), _LARGEST_METADATA)
        except OSError:
            continue  # an egg's record has another form, and says nothing here
        for line in text.partition(b"\n\n")[0].splitlines():
            # Extras are most of unsloth's 700 lines, and nobody has asked for one.
            if not line.startswith(b"Requires-Dist:") or b"extra" in line:
                continue
            match = _REQUIRES.fullmatch(line.decode(errors="replace"))
            if match is not None and _applies((match["marker"] or "").strip()):
                yield Needs(canonical(name), canonical(match["on"]), match["clauses"].strip())


def _applies(marker: str) -> bool:
    """Whether the condition of a requirement holds here; one that is not understood does not."""
    return "(" not in marker and any(
        all(_holds(part.strip()) for part in either.split(" and "))
        for either in marker.split(" or ")
    )


def _holds(part: str) -> bool:
    """One comparison of a condition; the empty condition holds."""
    match = _MARKER.fullmatch(part)
    if match is None:
        return not part
    system = os.uname()
    here = {
        "sys_platform": sys.platform,
        "platform_system": system.sysname,
        "platform_machine": system.machine,
    }
    name, sign, value = match.groups()
    if name in here and sign in ("==", "!="):
        return (here[name] == value) is (sign == "==")
    numbers = [int(number) for number in value.split(".") if number.isdigit()]
    if name != "python_version" or not numbers:
        return False
    return compares((sys.version_info.major, sys.version_info.minor)[: len(numbers)], sign, numbers)
