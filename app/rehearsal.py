"""The rehearsal model: what a machine without a GPU boots, built on first use.

A tiny random Gemma 3n in NF4 (see `app.engine.tiny`). It lies in the cache under a name made of
everything that goes into it, so a folder that exists is right and is never rewritten. Building
needs torch and therefore happens in a child process.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from app.errors import BootError
from app.facts.account import user_name
from app.facts.disk import fault_of
from app.facts.words import one_line, signal_name
from app.outcome import Fault

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
# The exception at the end of a traceback, with the system's number in Python's words or in Rust's
# (safetensors and tokenizers, whose exceptions are no OSError).
_NUMBERED = re.compile(rb"^[\w.]+: .*?(?:\[Errno (\d+)\]|\(os error (\d+)\))", flags=re.MULTILINE)
# What ends a builder from outside: no page of a mapped file could be had, or no memory.
_SIGNALS: dict[int, Fault] = {
    signal.SIGBUS: Fault.READ_ERROR,
    signal.SIGKILL: Fault.HARDWARE_MISMATCH,
}
_STEPS = {
    Fault.READ_ERROR: "free space on the disk of bootguard's cache, or take another node",
    Fault.CONFIG: "set XDG_CACHE_HOME to a folder that this uid may write to",
    Fault.HARDWARE_MISMATCH: "raise the memory limit of the container",
    Fault.TEMPORARY: "try again where the processor is less busy",
    Fault.INTERNAL: "rebuild the environment from its lock",
}


def content_key(sources: Sequence[Path], packages: Sequence[str] = INPUT_PACKAGES) -> str:
    """16 hex digits over the sources' bytes and the packages' versions; no Python version in it.

    Raises:
        BootError: a package is not installed.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    for package in packages:
        try:
            digest.update(f"{package}=={metadata.version(package)}\n".encode())
        except metadata.PackageNotFoundError as missing:
            raise _not_built(f"it needs the package {package}, which is not installed") from missing
    return digest.hexdigest()[:16]


def folder(cache_root: Path) -> Path:
    """Where the rehearsal model lies, or will lie, below `cache_root`."""
    return cache_root.absolute() / f"rehearsal-gemma3n-{content_key([_BUILDER_SOURCE])}"


def ensure(cache_root: Path, environ: Mapping[str, str], *, timeout_s: float) -> Path:
    """The finished folder of the rehearsal model, built first where it does not exist.

    Raises:
        BootError: the builder failed, was killed, or took over `timeout_s` seconds.
    """
    target = folder(cache_root)
    build_once(target, _BUILDER_MODULE, environ, timeout_s=timeout_s)
    return target


def build_once(target: Path, module: str, environ: Mapping[str, str], *, timeout_s: float) -> None:
    """Makes `target` by `python -m module DEST`, all of it or nothing; DEST has its name.

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
        raise _not_written(target.parent, error) from error
    try:
        made = Path(staging) / target.name
        _run_builder([module, str(made)], environ, Path(staging), timeout_s)
        _publish(made, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run_builder(
    command: Sequence[str], environ: Mapping[str, str], staging: Path, timeout_s: float
) -> None:
    """Runs the builder inside the staging folder, so that whatever it drops goes with that."""
    # -P: what lies in the current folder must not shadow a module.
    argv = [sys.executable, "-P", "-m", "app.builder", str(os.getpid()), *command]
    search = [str(_ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    try:
        child = subprocess.Popen(
            argv,
            cwd=staging,
            env={
                **environ,
                **user_name(environ),
                "CUDA_VISIBLE_DEVICES": "",
                "HF_HUB_OFFLINE": "1",
                "PYTHONPATH": os.pathsep.join(search),
                "TMPDIR": str(staging),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so that all of it can be ended
        )
    except OSError as error:
        why = f"its builder cannot be started: {error}"
        raise _not_built(why, fault_of(error.errno) or Fault.INTERNAL) from error
    try:
        output = _outcome(child, timeout_s)
    except subprocess.TimeoutExpired as late:
        why = f"it took longer than {timeout_s:g} s"
        raise _not_built(why, Fault.TEMPORARY, late.output) from late
    if child.returncode < 0:
        why = f"its builder was killed by signal {signal_name(-child.returncode)}"
        raise _not_built(why, _SIGNALS.get(-child.returncode, Fault.INTERNAL), output)
    if child.returncode > 0:
        last = output.decode(errors="replace").strip().rpartition("\n")[2]
        why = f"its builder failed with status {child.returncode}: {one_line(last, 200)}"
        raise _not_built(why, _fault_told(output), output)


def _outcome(child: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """What the builder printed; when it is late, or we are ended, all that it started is killed."""
    with child:
        try:
            return child.communicate(timeout=timeout_s)[0]
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise


def _fault_told(output: bytes) -> Fault:
    """Whose fault it is by the number in the last exception that has one."""
    found = [int(first or second) for first, second in _NUMBERED.findall(output)]
    return fault_of(found[-1] if found else None) or Fault.INTERNAL


def _not_built(why: str, fault: Fault = Fault.INTERNAL, output: bytes | None = None) -> BootError:
    """The finding, with the end of what the builder printed."""
    lines = (output or b"").decode(errors="replace").splitlines()[-_ERROR_LINES:]
    return BootError(
        f"the rehearsal model could not be built: {why}",
        fault=fault,
        expected="a tiny Gemma 3n, built from the installed packages",
        actual="\n".join(lines)[-1500:] or why,
        next_step=_STEPS[fault],
    )


def _not_written(where: Path, error: OSError) -> BootError:
    return _not_built(f"{where} cannot be written: {error}", fault_of(error.errno) or Fault.CONFIG)


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
            raise _not_written(target, error) from error


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
