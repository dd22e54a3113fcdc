"""The rehearsal model: what a machine without a GPU boots, built on first use.

A tiny random Gemma 3n in NF4 (see `app.engine.tiny`). It lies in the cache under a name made of
everything that goes into it, so a folder that exists is right and is never rewritten. Building
needs torch and therefore happens in a child process; this module imports the standard library only.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

# The id under which settings ask for it (BOOT_BASE_MODEL_ID).
MODEL_NAME = "rehearsal:gemma3n"

# Their versions decide the bytes: weights (torch, timm), packing (bitsandbytes), files (the rest).
INPUT_PACKAGES = ("torch", "transformers", "bitsandbytes", "timm", "tokenizers")

_ROOT = Path(__file__).resolve().parents[1]
_BUILDER_MODULE = "app.engine.tiny"
_BUILDER_SOURCE = _ROOT / "app" / "engine" / "tiny.py"
_STAGING_PREFIX = ".building-"
# A staging folder this old (seconds) belongs to a killed builder: a build takes about ten.
_STALE_AFTER_S = 3600.0
_ERROR_LINES = 12


class RehearsalBuildError(RuntimeError):
    """The rehearsal model was not built; the text says why and quotes the builder's output."""


def content_key(sources: Sequence[Path], packages: Sequence[str] = INPUT_PACKAGES) -> str:
    """16 hex digits over the sources' bytes and the packages' versions; no Python version in it.

    Raises:
        RehearsalBuildError: a package is not installed.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    for package in packages:
        try:
            digest.update(f"{package}=={metadata.version(package)}\n".encode())
        except metadata.PackageNotFoundError as missing:
            message = f"the rehearsal model needs the package {package}, which is not installed"
            raise RehearsalBuildError(message) from missing
    return digest.hexdigest()[:16]


def folder(cache_root: Path) -> Path:
    """Where the rehearsal model lies, or will lie, below `cache_root`."""
    return cache_root.absolute() / f"rehearsal-gemma3n-{content_key([_BUILDER_SOURCE])}"


def ensure(cache_root: Path, *, timeout_s: float) -> Path:
    """The finished folder of the rehearsal model, built first where it does not exist.

    Raises:
        RehearsalBuildError: the builder failed, was killed, or took over `timeout_s` seconds.
    """
    target = folder(cache_root)
    build_once(target, _BUILDER_MODULE, [], timeout_s=timeout_s)
    return target


def build_once(target: Path, module: str, arguments: Sequence[str], *, timeout_s: float) -> None:
    """Makes `target` by `python -m module DEST arguments...`, all of it or nothing.

    The builder writes into a staging folder beside the target, which one rename makes whole: a
    folder of the target's name is always complete. Of several builders the first one wins and the
    others drop theirs, which holds the same bytes.
    """
    if target.is_dir():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target.parent)
        staging = tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=target.parent)
    except OSError as error:
        message = f"cannot write the rehearsal model to {target.parent}: {error}"
        raise RehearsalBuildError(message) from error
    try:
        made = Path(staging) / "model"
        _run_builder([module, str(made), *arguments], Path(staging), timeout_s)
        _publish(made, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run_builder(command: Sequence[str], staging: Path, timeout_s: float) -> None:
    """Runs the builder inside the staging folder, so that whatever it drops goes with that."""
    # -P: what lies in the current folder must not shadow a module.
    argv = [sys.executable, "-P", "-m", *command]
    search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(search),
        "TMPDIR": str(staging),
    }
    try:
        done = subprocess.run(
            argv,
            cwd=staging,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        message = f"building the rehearsal model took longer than {timeout_s:g} s"
        raise RehearsalBuildError(message + _last_lines(late.output)) from late
    except OSError as error:
        message = f"cannot start the builder of the rehearsal model: {error}"
        raise RehearsalBuildError(message) from error
    if done.returncode != 0:
        how = f"killed by signal {-done.returncode}" if done.returncode < 0 else "failed"
        message = f"the builder of the rehearsal model {how} (status {done.returncode})"
        raise RehearsalBuildError(message + _last_lines(done.stdout))


def _last_lines(output: bytes | None) -> str:
    """The end of what the builder printed, ready to be appended to a message."""
    lines = (output or b"").decode(errors="replace").splitlines()[-_ERROR_LINES:]
    return "; its last output:\n" + "\n".join(lines) if lines else "; it printed nothing"


def _publish(made: Path, target: Path) -> None:
    """Gives the finished folder its name; losing that race to another builder is fine."""
    try:
        for file in made.iterdir():
            # Bytes first, name second: after a power cut no empty file stands in a named folder.
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        made.rename(target)
    except OSError as error:
        if not target.is_dir():
            message = f"cannot move the rehearsal model to {target}: {error}"
            raise RehearsalBuildError(message) from error


def _remove_stale(parent: Path) -> None:
    """Clears what killed builders left; the age keeps it off the folders of running ones."""
    oldest = time.time() - _STALE_AFTER_S
    for left in parent.glob(f"{_STAGING_PREFIX}*"):
        try:
            stale = left.stat().st_mtime < oldest
        except OSError:
            continue  # Its builder has just finished and removed it.
        if stale:
            shutil.rmtree(left, ignore_errors=True)
