"""Canaries: secrets planted in the inputs of a boot, and a search of all that it leaves."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
_KEPT = ("PATH", "HOME", "XDG_CACHE_HOME", "HF_HOME", "LANG")


def shaped() -> str:
    """A token that can be told by its form alone; no two are alike."""
    return "hf_" + "".join(
        secrets.choice("abcdefghkmnpqrstABCDEFGHKLMNPQRST23456789") for _ in range(34)
    )


def shapeless(more: str = "") -> str:
    """One that looks like nothing: it is found only where the boot was given it as a secret."""
    return secrets.token_urlsafe(24).replace("-", "x") + more


def forms(canary: str) -> Iterator[bytes]:
    """How it may stand in a text; written anew here, so that the product is not its own judge."""
    texts = {canary, json.dumps(canary)[1:-1], repr(canary)[1:-1], repr(canary.encode())[2:-1]}
    texts |= {quote(canary, safe=""), quote(canary), canary[:16], canary[-16:]}
    yield from (text.encode() for text in texts)
    for before in range(3):
        # The last characters of the code may depend on what follows, the first on what precedes.
        code = base64.b64encode(b"." * before + canary.encode()).rstrip(b"=")
        yield code[4:-2]
        yield code[4:-2].replace(b"+", b"-").replace(b"/", b"_")


@dataclass
class Cage:
    """A boot's folder `work`, where all that it leaves is searched, and one for its inputs."""

    folder: Path
    canaries: dict[str, str] = field(default_factory=dict)
    code: int = -1
    out: bytes = b""
    err: bytes = b""
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        """The working folder."""
        return self.folder / "work"

    @property
    def inputs(self) -> Path:
        """What the boot is given and does not write."""
        return self.folder / "inputs"

    def plant(self, where: str, canary: str) -> str:
        """Remember a canary by the place where it goes."""
        self.canaries[where] = canary
        return canary

    def boot(
        self,
        settings: Mapping[str, str],
        *arguments: str,
        before: Sequence[str] = (),
        timeout_s: float = 200,
    ) -> None:
        """Boot, and keep everything that comes out. `before` is put before the command."""
        for each in (self.work / "out", self.inputs):
            each.mkdir(parents=True, exist_ok=True)
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        places = {
            "PYTHONPATH": f"{self.inputs}:{ROOT}",
            "BOOT_HARDWARE": "cpu",
            "BOOT_TERMINATION_LOG": str(self.work / "out" / "termination-log"),
            "BOOT_METRICS_FILE": str(self.work / "out" / "boot.prom"),
            "TORCHELASTIC_ERROR_FILE": str(self.work / "out" / "error.json"),
        }
        done = subprocess.run(
            [*before, sys.executable, "-m", "app.boot", *arguments],
            cwd=self.work,
            env={**kept, **places, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        reports = [*self.work.rglob("boot-report.json")]
        self.report = json.loads(reports[0].read_text()) if reports else {}

    def texts(self) -> Iterator[tuple[str, bytes]]:
        """Everything that the boot has left, by name; names of files too."""
        yield "stdout", self.out
        yield "stderr", self.err
        for path in sorted(self.work.rglob("*")):
            yield "a name", str(path.relative_to(self.work)).encode()
            if path.is_file():
                yield str(path.relative_to(self.work)), path.read_bytes()

    def leaks(self, but: Sequence[str] = ()) -> list[str]:
        """Where a canary got out, in whole, escaped or in large part."""
        return [
            f"{where} is in {name}: ...{text[max(0, text.find(form) - 60) :][:200]!r}"
            for where, canary in self.canaries.items()
            for form in forms(canary)
            for name, text in self.texts()
            if form in text and name not in but
        ]

    def all_text(self) -> str:
        """All of it, to see that what ought to be told is told."""
        return b"\n".join(text for _, text in self.texts()).decode(errors="replace")
