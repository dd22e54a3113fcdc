"""Reads what the machine is, how this process is confined, and what its clock says."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from pathlib import Path

from app.facts.node import LEVELS, AccountFacts, ClockFacts, MachineFacts
from app.probes.cgroups import fields_of, text_of
from app.probes.files import read_bytes

# This release was written then; no clock of a machine that runs it can be right and earlier.
_WRITTEN = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
_DAY_S = 86400.0
_ONE_PROCESSOR = 8192  # bytes; one is described in some 1,500


def machine_facts(proc: Path, environ: Mapping[str, str], root: Path = Path("/")) -> MachineFacts:
    """The machine and the confinement; `proc` is /proc, `root` where the container's marks lie."""
    found = os.uname()
    status = fields_of(text_of(proc / "self" / "status"))
    no_new, seccomp = status.get("NoNewPrivs", ""), status.get("Seccomp", "")
    umask = status.get("Umask", "")
    processor = fields_of(_start_of(proc / "cpuinfo"))
    flags = processor.get("flags")
    return MachineFacts(
        machine=found.machine,
        kernel=found.release,
        glibc=glibc_version(),
        container=_container(root, environ),
        processor=processor.get("model name", ""),
        flags=None if flags is None else frozenset(flags.split()) & frozenset().union(*LEVELS),
        seccomp=int(seccomp) if seccomp.isdigit() else None,
        no_new_privileges=bool(int(no_new)) if no_new.isdigit() else None,
        umask=int(umask, 8) if umask.isdigit() else None,
    )


def _start_of(path: Path) -> str:
    """The first processor's lines: of a large node the whole file takes tens of milliseconds."""
    try:
        text, _ = read_bytes(path, _ONE_PROCESSOR)
    except OSError:
        return ""
    return text.decode(errors="replace").partition("\n\n")[0]


def glibc_version() -> str:
    """The GNU C library's version, as in "2.36"; empty for another library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return ""
    return version if name == "glibc" else ""


def _container(root: Path, environ: Mapping[str, str]) -> str:
    """What holds this process, by the marks that each kind leaves; empty where there is none.

    Marks can be missing: an empty answer is no proof of a bare machine.
    """
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if environ.get("ENROOT_ROOTFS") or (root / "etc" / "enroot").is_dir():
        return "enroot"
    for mark, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / mark).exists():
            return kind
    named = environ.get("container", "")  # systemd's convention, in lower case
    return named if named.isascii() and named.isprintable() else ""


def clock_facts() -> ClockFacts:
    """Now, and the latest moment that is certainly past.

    Installed metadata has the time of the image's build, or of its files' unpacking: reproducible
    builds set it to something earlier, which does no harm. A time after now by less than a day may
    come from a clock that ran ahead while building, so it does not count as such.
    """
    built, source = _WRITTEN, "this release's own date"
    for file in _stamped():
        try:
            stamp = file.stat().st_mtime
        except OSError:
            continue
        if stamp - _DAY_S > built:
            built, source = stamp - _DAY_S, str(file)
    return ClockFacts(time.time(), built, source)


def _stamped() -> tuple[Path, ...]:
    """Files that were written when the software was installed."""
    found = [Path("/opt/bootguard/image.json"), Path(sys.prefix) / "pyvenv.cfg"]
    spec = PathFinder.find_spec("huggingface_hub")
    if spec is not None and spec.origin:
        found.append(Path(spec.origin).parent)
    return tuple(found)


def account_facts(environ: Mapping[str, str]) -> AccountFacts:
    """Who runs here; a uid without a passwd entry is usual in OpenShift and with `--user`."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = None
    return AccountFacts(uid, os.getgid(), name, environ.get("HOME"))
