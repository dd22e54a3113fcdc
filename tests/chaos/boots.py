"""Runs one chaos boot as a user runs it, and gathers what it did and left. Judges nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tests.chaos.cases import Case
from tests.chaos.outside import Struck, act
from tests.chaos.places import Place, place_for
from tests.tiny_models import tiny_model

ROOT = Path(__file__).resolve().parents[2]
_INSIDE = Path(__file__).resolve().parent / "inside"
_HOME = ROOT / ".cache" / "tests"
_KEPT = ("PATH", "LANG")
_LOOK_S = 0.02
_HONEST_S = 150.0  # what the way to the strike may take, with a second boot beside it
_BESIDES_S = 20.0  # past its bound a boot is looked at a little longer, to say how late it was
_LEFT_S = 2.0  # a killed process takes a moment to go
_ORPHANED_S = 5.0  # what the death of the supervisor must take with it
COMMAND = (sys.executable, "-m", "app.boot")
_LAUNCHER = """\
for each in $CHAOS_GROUPS; do echo $$ >"$each/cgroup.procs"; done
[ "$CHAOS_FILES" = 0 ] || ulimit -n "$CHAOS_FILES"
exec "$@\""""

_REDIRECTIONS = {
    "stdout closed": " >&-",
    "stdout full": " >/dev/full",
    "stderr closed": " 2>&-",
    "stderr full": " 2>/dev/full",
}


@dataclass(slots=True)
class Found:
    """What was seen of one boot. Times in seconds; `lasted` is from the strike to the end."""

    code: int | None = None  # None: it did not end and was killed
    struck: bool = False
    took: float = 0.0
    lasted: float = 0.0
    out: bytes = b""
    err: bytes = b""
    report: str = ""
    files: list[str] = field(default_factory=list)  # in the report's folder and below
    under: list[str] = field(default_factory=list)  # under the mount point of a lost volume
    left: list[str] = field(default_factory=list)  # processes, by their command lines
    peak_kb: int = 0  # resident, of the supervisor
    trouble: str = ""  # of the test's own part


def boot(case: Case, folder: Path) -> Found:
    """One boot in an empty folder, from its start to what it leaves."""
    found = Found()
    with place_for(case, folder) as place:
        environ = _environment(case, place)
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process, ends = _start(case, place, environ, out, err)
        try:
            _watch(case, place, process, environ, found)
        finally:
            found.code = process.poll()
            place.thaw()  # what waits there dies now, if it was told to
            _left_over(case, place, found)
            place.kill_all()
            process.wait(30)
            for end in ends:
                os.close(end)
        found.out, found.err = (folder / "out").read_bytes(), (folder / "err").read_bytes()
        _read(case, place, found)
    return found


def _environment(case: Case, place: Place) -> dict[str, str]:
    """Nothing of the caller's but places; a name that the product does not know, for the chaos."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    cache = _HOME / ".cache"
    return {
        **kept,
        "HOME": str(_HOME),
        "XDG_CACHE_HOME": str(cache),
        "HF_HOME": str(cache / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join((str(_INSIDE), str(ROOT))),
        "CHAOS_DIR": str(place.folder),
        "CHAOS_FAULT": case.fault,
        "CHAOS_STAGE": case.stage,
        "CHAOS_FROZEN": str(place.frozen or ""),
        "CHAOS_FILES": str(case.files),
        "CHAOS_GROUPS": " ".join(str(group) for group in place.groups),
        "BOOT_HARDWARE": "cpu",
        "BOOT_BASE_MODEL_ID": str(tiny_model("llama-nf4")),
        "BOOT_MAX_SEQ_LENGTH": "256",
        "BOOT_LOG_FORMAT": "json",
        "BOOT_REPORT_DIR": str(place.reports),
        **{
            name: text.replace("{folder}", str(place.folder))
            for name, text in case.settings.items()
        },
    }


def _start(
    case: Case, place: Place, environ: Mapping[str, str], out: BinaryIO, err: BinaryIO
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start it in its control group; descriptors to be closed at the end come with it."""
    ends: list[int] = []
    redirection = _REDIRECTIONS.get(case.streams, "")
    command = ["sh", "-c", _LAUNCHER + redirection, "sh", "env", *case.inherited, *COMMAND]
    stdout, stderr = out.fileno(), err.fileno()
    if case.streams == "nobody reads stderr":
        ends = _full_pipe()
        stderr = ends[1]
    if case.streams == "nobody reads stdout":
        ends = _full_pipe()
        stdout = ends[1]
    process = subprocess.Popen(
        command,
        cwd=place.work,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    return process, ends


def _full_pipe() -> list[int]:
    """A pipe that takes nothing more, both ends of it held open."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while os.write(writer, b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(writer, True)
    return [reader, writer]


def _watch(
    case: Case,
    place: Place,
    process: subprocess.Popen[bytes],
    environ: Mapping[str, str],
    found: Found,
) -> None:
    """Do the outside part at the strike, and wait for the end, but not for ever."""
    began = time.monotonic()
    struck_at: float | None = None
    note = place.folder / "struck"
    due = began + _HONEST_S + (case.at_s or 0.0)
    while process.poll() is None and time.monotonic() < due:
        found.peak_kb = max(found.peak_kb, _peak_kb(process.pid))
        by_now = time.monotonic() - began >= case.at_s if case.at_s is not None else note.exists()
        if by_now and struck_at is None:
            struck_at, victim = _who(note, process.pid)
            due = struck_at + case.within_s + _BESIDES_S
            try:
                act(Struck(case, place, process.pid, victim, COMMAND, environ))
            except (OSError, subprocess.SubprocessError) as error:
                found.trouble = f"{type(error).__name__}: {error}"
                return
        time.sleep(_LOOK_S)
    if struck_at is None and note.exists():
        struck_at, _ = _who(note, process.pid)
    ended = time.monotonic()
    found.struck = struck_at is not None
    found.took, found.lasted = ended - began, ended - (struck_at or began)


def _who(note: Path, supervisor: int) -> tuple[float, int]:
    """When it struck, and whom; now and the supervisor where it is struck from outside."""
    if not note.exists():
        return time.monotonic(), supervisor
    said = json.loads(note.read_text(encoding="utf-8"))
    return float(said["at"]), int(said["pid"])


def _peak_kb(pid: int) -> int:
    """The resident peak of one process; the launcher's own shell is small."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(line.split()[1])


def _left_over(case: Case, place: Place, found: Found) -> None:
    """Processes of the boot that outlive it by more than they may."""
    slow = case.expect.report in ("left", "any") or place.frozen or case.volume == "loop"
    until = time.monotonic() + (_ORPHANED_S if slow else _LEFT_S)
    while (left := place.pids()) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    found.left = [f"{pid} {_command_line(pid)}" for pid in sorted(left)]


def _command_line(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return f"{state} {raw.replace(bytes(1), b' ').decode(errors='replace')[:80]}"


def _read(case: Case, place: Place, found: Found) -> None:
    """The report and what lies beside it; of an unmounted volume what lies underneath."""
    files = sorted(p for p in place.reports.rglob("*") if p.is_file() and p.name != "filler")
    names = [str(path.relative_to(place.reports)) for path in files]
    if case.outside == "unmount":
        found.under = names
        return
    found.files = [name for name in names if not name.startswith("lost+found")]
    report = place.reports / "boot-report.json"
    if report.is_file():
        found.report = report.read_text(encoding="utf-8")
