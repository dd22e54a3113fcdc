"""Whole boots for tests: a process, an environment, an exit status, and what was left behind.

`Boot` runs with `tests.played` on its path: without torch, in about a second, and with code of the
test's own in any stage. Everything else is the product's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.fakes_preflight import model_files, write_model
from tests.reports import assert_findings_are_whole

ROOT = Path(__file__).resolve().parent.parent
PLAYED = ROOT / "tests" / "played"
PATIENCE_S = 40.0  # two noisy cores; no fact here takes more than a few seconds
_KEPT = ("PATH", "HOME", "XDG_CACHE_HOME", "HF_HOME", "LANG")
HANG = "import time\ntime.sleep(3600)"


def until(true: Callable[[], object], what: str = "it") -> None:
    """Wait for a fact of another process."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"{what} did not become true"
        time.sleep(0.02)


def state(pid: int) -> str:
    """The kernel's letter for a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return state(pid) not in {"", "Z", "X"}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def marked(marker: str) -> list[int]:
    """Every process that has this text in its environment and is no zombie."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (folder / "environ").read_bytes() and runs(int(folder.name)):
                found.append(int(folder.name))
    return found


class Boot:
    """A boot that runs; leaving the context ends it and all that it has started."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *arguments: str,
        stage: str = "",
        code: str = "",
        before: Sequence[str] = (),
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        model = write_model(folder / "model", model_files())
        self.marker = f"PLAY_FOLDER={folder}"
        environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environ |= {
            "PYTHONPATH": f"{ROOT}:{PLAYED}",
            "PLAY_FOLDER": str(folder),
            "PLAY_STAGE": stage,
            "PLAY_CODE": code,
            "BOOT_HARDWARE": "cpu",
            "BOOT_BASE_MODEL_ID": str(model),
            "BOOT_REPORT_DIR": "reports",
            **(settings or {}),
        }
        self.reports = folder / environ["BOOT_REPORT_DIR"]
        self._err = folder / "stderr"
        with self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "app.boot", *arguments],
                cwd=folder,
                env=environ,
                stdout=stdout,
                stderr=err if stderr is None else stderr,
                start_new_session=True,
            )
        self.out = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = time.monotonic() + 10
        while (left := marked(self.marker)) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with self.process:
            self.process.wait(30)

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def report(self) -> dict[str, Any]:
        return dict(json.loads((self.reports / "boot-report.json").read_text()))

    @property
    def statuses(self) -> dict[str, str]:
        return {stage["name"]: stage["status"] for stage in self.report["stages"]}

    def wait_for(self, text: str) -> None:
        """Wait for a text in the log."""

        def there() -> bool:
            found = text in self.err
            assert found or self.process.poll() is None, f"no {text!r} in:\n{self.err}"
            return found

        until(there, f"{text!r} in the log")

    def left(self) -> list[int]:
        """Processes of this boot, but for its first."""
        return [pid for pid in marked(self.marker) if pid != self.process.pid]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end; the exit status."""
        out, _ = self.process.communicate(timeout=timeout_s)
        self.out = (out or b"").decode()
        return self.process.returncode


def ended(boot: Boot, code: int, state: str = "complete") -> None:
    """It ended with this status in the process, the report and the verdict, and left nothing."""
    found = boot.end()
    assert found == code, boot.err
    report = boot.report
    assert (report["exit"]["process_code"], report["state"]) == (code, state), report["exit"]
    assert_findings_are_whole(report)
    (line,) = boot.out.splitlines()
    assert json.loads(line)["exit"] == code
    assert not boot.left()
