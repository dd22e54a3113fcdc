"""Facts about CI's workflow: what it may do, and that all it runs is pinned and exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.profiles import PROFILES

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
TEXT = WORKFLOW.read_text(encoding="utf-8")
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]
SCRIPTS = {
    f"{name}: {step['name']}": step["run"]
    for name, job in JOBS.items()
    for step in job["steps"]
    if "run" in step
}
ATTESTATIONS = ROOT / "scripts" / "attestations.py"


def zizmor(path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "zizmor"), "--offline", "--pedantic", "--no-progress", str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_zizmor_finds_nothing_even_when_it_is_pedantic() -> None:
    found = zizmor(ROOT / ".github")
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("sound", "unsound", "audit"),
    [
        (r"actions/checkout@\w+", "actions/checkout@v7", "unpinned-uses"),
        ("        with:\n          persist-credentials: false\n", "", "artipacked"),
        (r"permissions: \{\}", "permissions: write-all", "excessive-permissions"),
        (r"run: \.ci/run", "run: echo ${{ github.head_ref }}", "template-injection"),
    ],
)
def test_zizmor_would_tell(sound: str, unsound: str, audit: str, tmp_path: Path) -> None:
    """A lint that is silent about everything proves nothing."""
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    changed = re.sub(sound, unsound, TEXT)
    assert changed != TEXT
    (folder / "ci.yml").write_text(changed, encoding="utf-8")
    assert audit in zizmor(tmp_path).stdout


def test_every_action_and_every_image_is_pinned_by_digest_with_its_version() -> None:
    used = re.findall(r"uses: (.*)", TEXT)
    assert len(used) == sum("uses" in step for step in STEPS)
    for one in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one), one
    for name in ("BUILDKIT", "SCANNER"):
        image = JOBS["images"]["env"][name]
        assert re.fullmatch(r"[a-z]+/[a-z-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image


def test_a_job_may_read_the_code_and_nothing_else() -> None:
    assert yaml.safe_load(TEXT)["permissions"] == {}
    assert [job["permissions"] for job in JOBS.values()] == [{"contents": "read"}] * len(JOBS)
    assert "secrets." not in TEXT
    assert "pull_request_target" not in TEXT


def test_every_job_ends_some_time_and_runs_on_a_release_that_does_not_move() -> None:
    for job in JOBS.values():
        assert 0 < job["timeout-minutes"] <= 120
        assert re.fullmatch(r"ubuntu-\d\d\.04", job["runs-on"])


def test_both_images_are_built_of_all_that_there_are() -> None:
    """One for each GPU that has a profile of its own."""
    built = set(JOBS["images"]["strategy"]["matrix"]["profile"])
    assert built == {name for name, profile in PROFILES.items() if not profile.rehearsal}
    assert built == {path.suffix[1:] for path in ROOT.glob("Dockerfile.*")}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_step_is_sound_shell_and_holds_no_expression(script: str, tmp_path: Path) -> None:
    """An expression would be pasted into the shell as text."""
    assert "${{" not in script
    path = tmp_path / "step.sh"
    path.write_text(f"#!/usr/bin/env bash\nset -eo pipefail\n{script}\n", encoding="utf-8")
    subprocess.run(["bash", "-n", str(path)], check=True)
    found = subprocess.run(
        [str(BIN / "shellcheck"), str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout


def test_every_file_that_a_step_runs_exists() -> None:
    named = {
        name
        for script in SCRIPTS.values()
        for name in re.findall(r"(?<![\w/$])(?:\.ci|scripts|docker)/[\w./-]+", script)
    }
    assert named == {".ci/run", "scripts/attestations.py", "scripts/image_size.py"}
    assert all((ROOT / name).is_file() for name in named)


# -- the attestations, as BuildKit lays them down in an image


def blob(layout: Path, content: dict[str, Any], name: str) -> dict[str, Any]:
    folder = layout / "blobs" / "sha256"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return {"digest": f"sha256:{name}"}


def layout(folder: Path, *kinds: str) -> Path:
    statements = [
        blob(folder, {"predicateType": kind}, f"statement{number}")
        | {"annotations": {"in-toto.io/predicate-type": kind}}
        for number, kind in enumerate(kinds)
    ]
    image = blob(folder, {"layers": [{"digest": "sha256:layer"}]}, "image")
    attested = blob(folder, {"layers": statements}, "attested")
    attested |= {"annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    index = blob(folder, {"manifests": [image, attested]}, "index")
    (folder / "index.json").write_text(json.dumps({"manifests": [index]}), encoding="utf-8")
    return folder


def take_out(source: Path, output: Path) -> subprocess.CompletedProcess[str]:
    # -S: nothing but the standard library, as on a machine that only builds.
    command = [sys.executable, "-S", str(ATTESTATIONS), str(source), str(output)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["v0.2", "v1"])
def test_provenance_and_the_list_of_contents_are_taken_out(version: str, tmp_path: Path) -> None:
    kinds = (f"https://slsa.dev/provenance/{version}", "https://spdx.dev/Document", "other")
    done = take_out(layout(tmp_path / "image", *kinds), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    told = {path.name: json.loads(path.read_bytes()) for path in (tmp_path / "out").iterdir()}
    assert told == {
        "provenance.json": {"predicateType": kinds[0]},
        "sbom.spdx.json": {"predicateType": kinds[1]},
    }


@pytest.mark.parametrize(
    ("kinds", "missing"),
    [((), "provenance.json, sbom.spdx.json"), (("https://spdx.dev/Document",), "provenance.json")],
)
def test_an_image_without_them_fails_the_job(
    kinds: tuple[str, ...], missing: str, tmp_path: Path
) -> None:
    done = take_out(layout(tmp_path / "image", *kinds), tmp_path / "out")
    assert done.returncode == 1
    assert f"has no {missing}" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_image_without_any_index_of_its_own_fails_the_job_too(tmp_path: Path) -> None:
    """What a build without attestations writes: the top names the image at once."""
    source = layout(tmp_path / "image")
    (source / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:image"}]}))
    assert "has no provenance.json" in take_out(source, tmp_path / "out").stderr
