"""Where the control groups of this process lie, of both versions; what their files say is text.

A limit on any parent group binds too, so every look goes from the own group up to the mount's root.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def groups(proc: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Folders of a controller's groups, own group first, each with its version; `proc` is /proc.

    Version 1 has a hierarchy for each controller (or several together), version 2 one for all. Both
    can be mounted at once; then the controller's files are in one of them only.
    """
    own = _own_groups(proc / "self" / "cgroup")
    for line in text_of(proc / "self" / "mountinfo").splitlines():
        # man 5 proc: id parent dev root mountpoint options [optional...] - type source superoptions
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:  # noqa: PLR2004 - see the format above
            continue
        if kind[0] == "cgroup2":
            version, group = 2, own.get("")
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            version, group = 1, own.get(controller)
        else:
            continue
        top = Path(unescaped(fields[4]))
        below = _below(group, unescaped(fields[3]))
        yield from ((folder, version) for folder in _upwards(top, below))


def unescaped(path: str) -> str:
    r"""A path as the kernel's mount tables write it: blanks and backslashes are `\040`, `\134`."""
    if "\\" not in path:
        return path
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        path = path.replace(f"\\{code}", character)
    return path


def number_of(path: Path) -> int | None:
    """The number in a file; None for `max`, another text or no file."""
    text = text_of(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def value_of(path: Path, name: str) -> int | None:
    """The number after a name in a file of `name number` lines; None where there is none."""
    for line in text_of(path).splitlines():
        key, _, value = line.partition(" ")
        number = value.strip()
        if key == name and number.isascii() and number.isdigit():
            return int(number)
    return None


def fields_of(text: str) -> dict[str, str]:
    """The fields of `name: value` lines, as /proc/self/status has them; of a name the last one."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def text_of(path: Path) -> str:
    """A file of the kernel, empty where it is not there or not for us."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _own_groups(path: Path) -> dict[str, str]:
    """Controller -> group of this process; the empty name is version 2."""
    found: dict[str, str] = {}
    for line in text_of(path).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        found |= dict.fromkeys(controllers.split(","), group)
    return found


def _below(group: str | None, mounted: str) -> str:
    """The group's path below the mount point.

    In a container without a namespace of groups the group is named from the host's root while the
    mount shows a part of it; what lies outside of the mount cannot be read, so its root is taken.
    """
    if group is None or mounted == "/":
        return (group or "").strip("/")
    return group[len(mounted) :].strip("/") if f"{group}/".startswith(f"{mounted}/") else ""


def _upwards(top: Path, below: str) -> Iterator[Path]:
    parts = [part for part in below.split("/") if part not in {"", ".."}]
    for length in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:length])
