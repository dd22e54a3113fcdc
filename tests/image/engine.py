"""An image as the tests hold it: built from a fresh clone with secrets, looked into, removed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.containers.engine import IMAGE as BASE
from tests.containers.engine import docker
from tests.image.checkout import ROOT, clone

PROFILES = ("h100", "v100")
LABEL = "bootguard.test=image"  # scripts/engine.sh removes what carries it
REVISION = "0123456789abcdef0123456789abcdef01234567"
SOURCE = "somewhere/bootguard"
BOOT_UID = 10001
_BUILD_S = 1800.0  # a slow network's download of 4 GB too


class BuildError(Exception):
    """The build failed; the end of its log."""


@dataclass(frozen=True)
class Image:
    """A built image; `clone` is the checkout that it was built from."""

    profile: str
    tag: str
    clone: Path
    hidden: tuple[str, ...]  # what must be nowhere in it
    build_s: float

    @cached_property
    def inspected(self) -> dict[str, Any]:
        return dict(json.loads(docker("image", "inspect", self.tag).stdout)[0])

    @cached_property
    def config(self) -> dict[str, Any]:
        return dict(self.inspected["Config"])

    @cached_property
    def environment(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.config["Env"])

    @cached_property
    def described(self) -> dict[str, Any]:
        """What image.json says."""
        return dict(json.loads(self.shell("cat /opt/bootguard/image.json")))

    def shell(self, script: str, *, user: str = "0:0") -> str:
        """Output of a script in a fresh container, by root unless said."""
        where = ["--rm", "--network=none", f"--label={LABEL}", f"--user={user}"]
        return docker("run", *where, "--entrypoint=sh", self.tag, "-euc", script).stdout


@contextlib.contextmanager
def built(profile: str, folder: Path) -> Iterator[Image]:
    """Build, and give the disk back in the end."""
    context = clone(folder / "clone", private=True)
    hidden = tuple(secrets.token_hex(16) for _ in range(3))
    password, token, stray = hidden
    (context / ".env").write_text(f"HF_TOKEN=hf_{stray}\n", encoding="utf-8")
    tag = f"bootguard-test:{profile}"
    began = time.monotonic()
    try:
        with index(folder, "builder", password) as address:
            given = {"index": address, "hf_token": f"hf_{token}"}
            _build(profile, tag, context, _as_files(folder, given))
        yield Image(profile, tag, context, hidden, time.monotonic() - began)
    finally:
        docker("image", "rm", "--force", tag, check=False)
        subprocess.run([str(ROOT / "scripts" / "engine.sh"), "prune"], check=True)


def _as_files(folder: Path, given: Mapping[str, str]) -> list[str]:
    """Options that hand the build its secrets."""
    options = []
    for name, value in given.items():
        path = folder / f"secret-{name}"
        path.touch(mode=0o600)
        path.write_text(value, encoding="utf-8")
        options.append(f"--secret=id={name},src={path}")
    return options


def _build(profile: str, tag: str, context: Path, options: list[str]) -> None:
    # On the machine's network: the index is on it, and a private engine has no other.
    arguments = [f"BASE_IMAGE={BASE}", f"REVISION={REVISION}", f"SOURCE={SOURCE}"]
    told = [f"--build-arg={each}" for each in arguments]
    command = ["docker", "build", "--progress=plain", "--network=host", f"--label={LABEL}"]
    where = [f"--file={context / f'Dockerfile.{profile}'}", f"--tag={tag}", str(context)]
    log = context.parent / "build.log"
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [*command, *told, *options, *where],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=_BUILD_S,
            env={**os.environ, "DOCKER_BUILDKIT": "1"},
        )
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if done.returncode:
        raise BuildError("\n".join(lines[-60:]))


@contextlib.contextmanager
def index(folder: Path, user: str, password: str) -> Iterator[str]:
    """The address, with its password, of an index that asks for one; see `tests.image.index`."""
    told = folder / "index.json"
    command = [sys.executable, "-m", "tests.image.index", user, password, str(told)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            while not told.exists():
                assert process.poll() is None, "the index does not start"
                time.sleep(0.05)
            port, path = json.loads(told.read_text(encoding="utf-8"))
            yield f"http://{user}:{password}@127.0.0.1:{port}{path}"
        finally:
            process.terminate()
