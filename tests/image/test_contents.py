"""Facts about what is in the image, and what it says about itself."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from tests.containers.engine import docker
from tests.image.checkout import ROOT
from tests.image.engine import LABEL, REVISION, SOURCE, Image

SITE = "/opt/bootguard/venv/lib/python3.*/site-packages"
WANTED_ENVIRONMENT = {
    "BOOT_REPORT_DIR": "/reports",
    "HOME": "/cache",
    "HF_HOME": "/models",
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_REQUIRE_CUDA": "cuda>=12.0",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "PYTHONNOUSERSITE": "1",
    "UNSLOTH_DISABLE_STATISTICS": "1",
    "XDG_CACHE_HOME": "/cache",
}
# CUDA's release and the least driver, by lock: from the project's table of versions.
CUDA = {"h100": ("13.0", 580), "v100": ("12.8", 525)}
# What the build used, or leaves by nature.
LEFTOVERS = f"""
find /mnt /srv -mindepth 1 # where the build mounts its own
ls -d /docker /tools /layers /root/.cache /root/.config /run/secrets /var/cache/apt/archives/*.deb \
    /var/lib/apt/lists/* /tmp/* /var/tmp/* /var/log/apt /var/log/dpkg.log 2>/dev/null || true
ls -d {SITE}/uv {SITE}/pip /opt/bootguard/venv/bin/pip* 2>/dev/null || true
find / -xdev -name '*.opt-[12].pyc' -o -xdev -path '*/site-packages/*.a' -name 'libcu*.a'
find /cache /models /reports /workspace -mindepth 1
"""
WRITABLE = r"find / -xdev -path /proc -prune -o \( -perm -002 -o -user 10001 \) ! -type l -print"
# A source whose bytecode is missing or older is compiled at every start of a read-only image.
STALE = """
import importlib.util, pathlib, struct, sys
for folder in [*sys.path, "/opt/bootguard/app"]:
    if not folder.startswith("/opt/bootguard"):
        continue
    for source in pathlib.Path(folder).rglob("*.py"):
        if source.is_relative_to("/opt/bootguard/venv/bin"):  # for other programs to read
            continue
        compiled = pathlib.Path(importlib.util.cache_from_source(str(source)))
        if not compiled.exists():
            try:
                compile(source.read_bytes(), str(source), "exec")
            except (SyntaxError, ValueError):
                continue
            print("missing", source)
            continue
        _, flags, mtime, size = struct.unpack("<4sIII", compiled.read_bytes()[:16])
        found = source.stat()
        if flags == 0 and (mtime, size) != (int(found.st_mtime), found.st_size & 0xFFFFFFFF):
            print("stale", source)
"""


def bake(image: Image, profile: str) -> Any:
    """The proof, asked once more for a profile; it writes where nobody looks."""
    lock = ["--lock", "/opt/bootguard/requirements.txt"]
    named = ["--profile", profile, "--base", "somewhere/base", "--revision", REVISION]
    where = ["--rm", "--network=none", f"--label={LABEL}", "--user=0:0", "--entrypoint=python"]
    command = ["-m", "app.bake", *lock, *named, "--output", "/tmp/image.json"]  # noqa: S108
    return docker("run", *where, image.tag, *command, check=False)


def test_image_json_says_what_was_built(image: Image) -> None:
    cuda, driver = CUDA[image.profile]
    wanted = {
        "profile": image.profile,
        "cuda": cuda,
        "minimum_driver": driver,
        "revision": REVISION,
        "base": "bootguard/standin-base:test",
        "base_digest": "unpinned",
        "changes": {},
    }
    assert {name: image.described[name] for name in wanted} == wanted
    digest = image.shell("sha256sum /opt/bootguard/requirements.txt").split()[0]
    assert image.described["lock_digest"].removeprefix("sha256:") == digest
    lock = (ROOT / "docker" / f"requirements.{image.profile}.txt").read_text(encoding="utf-8")
    for name in ("torch", "unsloth", "bitsandbytes"):
        assert f"{name}=={image.described['versions'][name]} " in lock


def test_the_labels_say_what_image_json_says(image: Image) -> None:
    labels = {
        name: value
        for name, value in image.config["Labels"].items()
        if name.startswith(("bootguard.", "org.opencontainers."))
    }
    said = image.described
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    oci = "org.opencontainers.image"
    wanted = {
        "bootguard.profile": said["profile"],
        "bootguard.lock": image.profile,
        "bootguard.cuda": said["cuda"],
        "bootguard.minimum-driver": str(said["minimum_driver"]),
        "bootguard.architectures": " ".join(said["architectures"]),
        f"{oci}.revision": said["revision"],
        f"{oci}.source": SOURCE,
        f"{oci}.version": version,
        f"{oci}.base.name": said["base"],
    }
    assert {name: labels.get(name) for name in wanted} == wanted
    left = {f"{oci}.{name}" for name in ("title", "description", "licenses", "base.digest")}
    assert set(labels) - set(wanted) - {LABEL.partition("=")[0]} == left
    assert all(labels.values())


def test_the_configuration_is_what_orchestrators_rely_on(image: Image) -> None:
    config = image.config
    assert config["User"] == "10001:0"
    assert config["WorkingDir"] == "/workspace"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Entrypoint"] == ["/usr/bin/tini", "-s", "--", "python", "-m", "app.boot"]
    assert not config["Cmd"]
    assert set(config["Volumes"]) == {"/cache", "/models"}
    assert not config.get("ExposedPorts")


def test_the_environment_is_pinned(image: Image) -> None:
    wanted = {**WANTED_ENVIRONMENT, "BOOT_HARDWARE": image.profile}
    assert {name: image.environment.get(name) for name in wanted} == wanted
    assert image.environment["PATH"].startswith("/opt/bootguard/venv/bin:")


def test_the_build_leaves_nothing_of_its_own(image: Image) -> None:
    assert image.shell(LEFTOVERS).splitlines() == []


def test_all_that_is_run_belongs_to_root_and_is_readable_by_anyone(image: Image) -> None:
    """The context was checked out under a umask of 077."""
    script = r"find /opt/bootguard ! -type l \( -perm /022 -o ! -user 0 -o ! -perm -444 \)"
    assert image.shell(script).splitlines() == []
    assert image.shell("find /opt/bootguard -type d ! -perm -555").splitlines() == []


def test_only_folders_for_data_are_writable_by_anyone(image: Image) -> None:
    found = set(image.shell(WRITABLE).splitlines())
    base = docker("run", "--rm", "--network=none", f"--label={LABEL}",
                  "bootguard/standin-base:test", "sh", "-c", WRITABLE).stdout  # fmt: skip
    assert found - set(base.splitlines()) == {"/cache", "/models"}
    assert image.shell("stat -c '%a %u %g' /reports /workspace").split("\n")[:2] == ["775 0 0"] * 2


def test_bytecode_is_there_and_is_used(image: Image) -> None:
    done = docker("run", "--rm", "--network=none", f"--label={LABEL}", "--entrypoint=python",
                  image.tag, "-c", STALE)  # fmt: skip
    assert done.stdout.splitlines() == []


def test_the_bill_of_materials_lists_the_lock(image: Image) -> None:
    bill = json.loads(image.shell("cat /opt/bootguard/sbom.cdx.json"))
    assert bill["bomFormat"] == "CycloneDX"
    listed = {(each["name"].lower(), each.get("version")) for each in bill["components"]}
    versions = {(name, version) for name, version in image.described["versions"].items()}
    assert versions <= listed
    assert {name for name, _ in listed} >= {"gcc", "tini", "libc6-dev"}


@pytest.mark.parametrize("profile", ["v100", "h100"])
def test_the_proof_holds_for_what_the_wheels_carry(image: Image, profile: str) -> None:
    """The CUDA 12.8 set carries both architectures, so `LOCK=v100` makes an H100 image."""
    done = bake(image, profile)
    if image.profile == "h100" and profile == "v100":
        assert done.returncode == 1
        assert "sm_70" in done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr
