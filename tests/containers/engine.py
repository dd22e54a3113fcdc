"""The Docker engine of this machine, by its client: containers that are removed in the end."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from functools import cache

IMAGE = "bootguard/standin-base:test"
_LABEL = "bootguard.test=containers"
PATIENCE_S = 180.0  # for what takes 20 s alone on 2 cores
_ENGINE_S = 20.0  # for an engine to say that it is there
_HUB_PORT = 8080
HUB_SETTINGS = {
    "BOOT_BASE_MODEL_ID": "somebody/a-model",
    "HF_ENDPOINT": f"http://127.0.0.1:{_HUB_PORT}",
}
# A hub that takes connections and never answers, for the interpreter of the stand-in.
_SILENT_HUB = f"""
import socket, time
server = socket.create_server(("127.0.0.1", {_HUB_PORT}), backlog=64)
print("listening", flush=True)
taken = []
while True:
    taken.append(server.accept())
"""


def docker(
    *arguments: str, check: bool = True, timeout_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """One command of the client. Fails with what the client said, where it is to succeed."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@cache
def unavailable() -> str:
    """Why no container can be run here; empty where one can."""
    try:
        answers = docker("info", check=False, timeout_s=_ENGINE_S).returncode == 0
    except FileNotFoundError:
        return "there is no Docker client"
    except subprocess.TimeoutExpired:
        answers = False
    if not answers:
        return "no Docker engine answers; tests/containers/__init__.py says how to start one"
    if docker("image", "inspect", IMAGE, check=False).returncode:
        return f"no image {IMAGE}: `python -m tests.containers` makes it"
    return ""


@contextlib.contextmanager
def silent_hub() -> Iterator[str]:
    """The network of a hub that never answers, for `Given.network`; see `HUB_SETTINGS`."""
    command = ["--network=none", "--entrypoint=python3", IMAGE, "-c", _SILENT_HUB]
    with started(*command) as identity:
        deadline = time.monotonic() + PATIENCE_S
        while "listening" not in docker("logs", identity).stdout:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield f"container:{identity}"


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[str]:
    identity = docker("create", f"--label={_LABEL}", *arguments).stdout.strip()
    try:
        docker("start", identity)
        yield identity
    finally:
        docker("rm", "--force", identity, check=False)
