"""The command line of the proof, and its words for a build log."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from app.bake.describe import UNPINNED, built_at, describe, split_base, write
from app.bake.lock import read_lock
from app.bake.proofs import PROOFS
from app.bake.scene import Scene, clean
from app.config import ModelRequest
from app.errors import BootError
from app.facts.words import one_line
from app.image import IMAGE_FILE, read_image
from app.outcome import Fault, Finding, Status
from app.plan import Plan
from app.profiles import PROFILES

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_WORDS = {Status.PASS: "ok", Status.WARN: "WARN", Status.SKIP: "skip"}
_INDENT = " " * 6


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be proven: an image made from a lock, or one derived from such an image."""

    profile: str
    wanted: Mapping[str, str]
    wanted_by: str
    lock_digest: str
    base: tuple[str, str]  # name and digest
    revision: str
    derived: bool = False


@cli.command()
def bake(
    context: typer.Context,
    *,
    profile: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILES)}.")] = "",
    lock: Annotated[Path | None, typer.Option(help="What the packages come from.")] = None,
    base: Annotated[str, typer.Option(help="The base image: NAME@sha256:DIGEST.")] = "",
    revision: Annotated[str, typer.Option(help="The commit of the sources.")] = "",
    output: Annotated[Path, typer.Option(help="The image's description.")] = IMAGE_FILE,
    derived: Annotated[
        bool,
        typer.Option(
            "--derived", help="In an image derived from ours: packages may differ from the lock."
        ),
    ] = False,
) -> None:
    """Prove that this image holds what it says, and write image.json when all of it holds.

    Needs no GPU and no network. Exit status 0, or 1 with every proof that fails named.
    """
    try:
        if derived:
            subject = _of_image(output, revision, also=bool(profile or lock or base))
        else:
            subject = _of_lock(profile, lock, split_base(base), revision)
        good = prove(subject, output, context.obj)
    except BootError as error:
        typer.echo(told("start", error.finding, ""))
        good = False
    raise typer.Exit(0 if good else 1)


def _of_lock(profile: str, lock: Path | None, base: tuple[str, str], revision: str) -> Subject:
    if profile not in PROFILES or lock is None:
        raise _misused(
            f"--profile, one of {', '.join(PROFILES)}, and --lock", one_line(profile) or "neither"
        )
    found = read_lock(lock)
    return Subject(profile, found.pins, lock.name, found.digest, base, revision or "unknown")


def _of_image(output: Path, revision: str, *, also: bool) -> Subject:
    """All but what has changed is as the image says that this one is derived from."""
    if also:
        raise _misused("--derived without --profile, --lock and --base", "both")
    image = read_image(output)
    if image is None:
        raise _misused(f"an image derived from ours, which has {output}", "there is no such file")
    base = (image.base, image.base_digest)
    return Subject(
        image.profile,
        image.locked(),
        "the lock of the image that this one is derived from",
        image.lock_digest,
        base,
        revision or image.revision,
        derived=True,
    )


def _misused(expected: str, actual: str) -> BootError:
    return BootError(
        "the command line asks for nothing that can be proven",
        fault=Fault.USAGE,
        expected=expected,
        actual=actual,
        source="python -m app.bake --help",
        next_step="say what the image is made from, or --derived in one that is made from ours",
    )


def prove(subject: Subject, output: Path, environ: Mapping[str, str]) -> bool:
    """Run every proof and say what it found; write the description where all hold."""
    began, built = time.monotonic(), built_at(environ)
    name, digest = subject.base
    typer.echo(f"proving an image of profile {subject.profile}, lock {subject.lock_digest}")
    typer.echo(f"{_INDENT}revision {subject.revision}, base {name or 'unknown'} {digest}")
    if digest == UNPINNED:
        typer.echo(f"{_INDENT}the base has no digest: another build may find another base")
    with tempfile.TemporaryDirectory(prefix="bootguard-bake-") as folder:
        scratch = Path(folder)
        scene = Scene(
            Plan(PROFILES[subject.profile], ModelRequest(), scratch),
            clean(environ, scratch),
            scratch,
            subject.wanted,
            subject.wanted_by,
            derived=subject.derived,
        )
        bad = _run(scene)
        took = f"{len(PROOFS)} proofs in {time.monotonic() - began:.0f} s"
        if bad:
            typer.echo(f"{took}; failed: {', '.join(bad)}. {output} is not written")
            return False
        image = describe(
            scene,
            lock_digest=subject.lock_digest,
            base=subject.base,
            revision=subject.revision,
            built=built,
        )
    write(image, output)
    typer.echo(f"{took}, all hold: wrote {output}")
    return True


def _run(scene: Scene) -> list[str]:
    """Names of the proofs that fail; all of them run, so that one build shows every fault."""
    bad = []
    for proof in PROOFS:
        finding = proof.finding(scene)
        typer.echo(told(proof.name, finding, proof.source))
        if finding.status.blocks:
            bad.append(proof.name)
    return bad


def told(name: str, finding: Finding, source: str) -> str:
    """One line for what holds; five for what does not."""
    lines = [f"{_WORDS.get(finding.status, 'FAIL'):<5} {name}: {finding.reason}"]
    if finding.status.blocks:
        fields = {
            "expected": finding.expected,
            "actual": finding.actual,
            "source": finding.source or source,
            "next step": finding.next_step,
        }
        lines += [f"{_INDENT}{field:<10} {text}" for field, text in fields.items()]
    return "\n".join(lines)
