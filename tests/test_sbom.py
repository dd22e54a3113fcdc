"""Facts about an image's bill of materials: what it lists, and that one image gives one file."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "docker" / "sbom.py"
LOCK = ROOT / "docker" / "requirements.h100.txt"
UBUNTU = {"ID": "ubuntu", "VERSION_ID": "24.04"}
IMAGE = {
    "profile": "h100",
    "lock_digest": "5" * 64,
    "versions": {"torch": "2.14.1"},
    "architectures": ["sm_80", "sm_90"],
    "minimum_driver": 580,
    "base_digest": "sha256:" + "2" * 64,
    "revision": "0123abc",
    "built": 1_700_000_000,
    "changes": None,
}
DPKG = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Source: glibc
Version: 2.39-0ubuntu8.6

Package: gcc
Status: install ok installed
Architecture: amd64
Source: gcc-defaults (1.214ubuntu1)
Version: 4:13.2.0-7ubuntu1

Package: tini
Status: install ok installed
Architecture: amd64
Version: 0.19.0-1

Package: half
Status: install reinstreq half-installed
Architecture: all
Version: 1

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no dpkg-query here")


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SBOM = loaded()
VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)


def dpkg(folder: Path) -> Path:
    (folder / "updates").mkdir(parents=True)
    (folder / "info").mkdir()
    (folder / "status").write_text(DPKG, encoding="utf-8")
    return folder


def package(site: Path, name: str, content: bytes | None) -> None:
    """Lay down a `.dist-info` folder, the only part of a package that is read."""
    folder = site / f"{name}.dist-info"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "METADATA").write_bytes(content)


def document(packages: list[Any], image: dict[str, Any] | None = None, epoch: str = "") -> str:
    return str(SBOM.document(SBOM.described(image or IMAGE), UBUNTU, packages, epoch))


def valid(text: str) -> dict[str, Any]:
    assert VALIDATOR.validate_str(text) is None
    content: dict[str, Any] = json.loads(text)
    return content


def run(output: Path, venv: Path, lock: Path, epoch: str = "") -> dict[str, Any]:
    scratch = output.parent
    (scratch / "image.json").write_text(json.dumps(IMAGE), encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    if epoch:
        environ["SOURCE_DATE_EPOCH"] = epoch
    admin = scratch / "dpkg"
    subprocess.run(
        [
            *(sys.executable, str(PROGRAM), "--output", str(output), "--venv", str(venv)),
            *("--lock", str(lock), "--image", str(scratch / "image.json")),
            *("--dpkg", str(admin if admin.exists() else dpkg(admin))),
        ],
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    return valid(output.read_text(encoding="utf-8"))


def by_purl(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["purl"]: one for one in content["components"] if "purl" in one}


@needs_dpkg
def test_this_environment_and_a_system_are_listed_in_a_valid_document(tmp_path: Path) -> None:
    content = run(tmp_path / "sbom.json", Path(sys.prefix), LOCK, epoch="1700000000")
    listed = by_purl(content)
    installed = {
        f"pkg:pypi/{canonicalize_name(dist.metadata['Name'])}@{dist.version}"
        for dist in metadata.distributions(path=[sysconfig.get_path("purelib")])
    }
    assert {purl for purl in listed if purl.startswith("pkg:pypi/")} == installed
    assert sum(purl.startswith("pkg:deb/") for purl in listed) == 4
    assert content["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert (tmp_path / "sbom.json").stat().st_mode & 0o777 == 0o644


@needs_dpkg
def test_the_same_image_gives_the_same_bytes_and_no_time_that_was_not_given(tmp_path: Path) -> None:
    for name in ("b-1", "a-1", "c-1"):
        package(tmp_path / "one/lib/python3.12/site-packages", name, b"License: MIT\n")
    for name in ("c-1", "b-1", "a-1"):
        package(tmp_path / "two/lib/python3.12/site-packages", name, b"License: MIT\n")
    first = run(tmp_path / "first.json", tmp_path / "one", LOCK)
    run(tmp_path / "second.json", tmp_path / "two", LOCK)
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()
    assert "timestamp" not in first["metadata"]


def test_the_serial_number_follows_the_content_and_not_the_time(tmp_path: Path) -> None:
    package(tmp_path, "a-1", b"")
    a = list(SBOM.python_packages(tmp_path, {}))
    serials = {
        json.loads(text)["serialNumber"]
        for text in (document(a), document(a, epoch="5"), document(a, epoch="6"))
    }
    assert len(serials) == 1
    others = [document([]), document(a, IMAGE | {"revision": "4567def"})]
    assert not serials & {json.loads(text)["serialNumber"] for text in others}


def test_the_image_is_what_the_document_describes() -> None:
    described = valid(document([]))["metadata"]["component"]
    assert (described["name"], described["version"]) == ("bootguard-h100", IMAGE["revision"])
    assert {one["name"]: one["value"] for one in described["properties"]} == {
        "bootguard:architectures": "sm_80 sm_90",
        "bootguard:base-digest": IMAGE["base_digest"],
        "bootguard:lock-digest": IMAGE["lock_digest"],
        "bootguard:minimum-driver": "580",
        "bootguard:profile": "h100",
        "bootguard:revision": IMAGE["revision"],
    }


def test_everything_listed_is_a_part_of_the_image(tmp_path: Path) -> None:
    package(tmp_path, "a-1", b"")
    content = valid(document(list(SBOM.python_packages(tmp_path, {}))))
    (parts,) = [one["dependsOn"] for one in content["dependencies"] if one["ref"] == "image"]
    assert set(parts) == {one["bom-ref"] for one in content["components"]}


@needs_dpkg
def test_a_package_of_the_system_carries_its_source_and_a_removed_one_is_left_out(
    tmp_path: Path,
) -> None:
    """Vulnerabilities are filed under the source package and its version."""
    listed = by_purl(valid(document(list(SBOM.system_packages(dpkg(tmp_path / "dpkg"), UBUNTU)))))
    here = "arch=amd64&distro=ubuntu-24.04"
    source = f"{here}&upstream"
    assert set(listed) == {
        f"pkg:deb/ubuntu/gcc@4:13.2.0-7ubuntu1?{source}=gcc-defaults%401.214ubuntu1",
        "pkg:deb/ubuntu/half@1?arch=all&distro=ubuntu-24.04",
        f"pkg:deb/ubuntu/libc6@2.39-0ubuntu8.6?{source}=glibc%402.39-0ubuntu8.6",
        f"pkg:deb/ubuntu/tini@0.19.0-1?{here}",
    }


def test_a_hash_is_told_where_the_lock_leaves_one_file_only(tmp_path: Path) -> None:
    one, two = "1" * 64, "2" * 64
    locked = SBOM.pins(
        f"# a lock\nOne.Wheel==1.0 \\\n    --hash=sha256:{one}\n"
        "two==2 ; python_version == '3.11' \\\n"
        f"    --hash=sha256:{two} \\\n    --hash=sha256:{one}\n"
    )
    for name in ("one_wheel-1.0", "two-2", "two_other-2"):
        package(tmp_path, name, b"")
    listed = by_purl(valid(document(list(SBOM.python_packages(tmp_path, locked)))))
    assert listed["pkg:pypi/one-wheel@1.0"]["hashes"] == [{"alg": "SHA-256", "content": one}]
    assert "hashes" not in listed["pkg:pypi/two@2"]
    assert [item["value"] for item in listed["pkg:pypi/two@2"]["properties"]] == [one, two]
    assert not {"hashes", "properties"} & listed["pkg:pypi/two-other@2"].keys()


def test_every_pin_of_the_lock_is_read_with_all_its_hashes() -> None:
    text = LOCK.read_text(encoding="utf-8")
    locked = SBOM.pins(text)
    assert sum(map(len, locked.values())) == text.count("--hash=")
    assert all(locked.values())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"License-Expression: MIT OR Apache-2.0\nLicense: x\n", "MIT OR Apache-2.0"),
        (b"License: apache-2.0\n", "Apache-2.0"),
        (b"License: Apache 2.0\nClassifier: License :: OSI Approved :: X\n", "Apache 2.0"),
        (b"License: LicenseRef-NVIDIA-Proprietary\n", "LicenseRef-NVIDIA-Proprietary"),
        (b"License: UNKNOWN\nClassifier: License :: OSI Approved :: BSD License\n", "BSD License"),
        (b"License: a\n        whole text\nClassifier: License :: Free\n", "Free"),
        (b"License: " + b"long " * 50 + b"\nClassifier: License :: A :: B\n", "B"),
        (b"License: a\x1bb\nClassifier: License :: A :: B\n", "B"),
        (b"License: \xff\xfe\nClassifier: License :: A :: B\n", "B"),
        (b"Classifier: License ::\nClassifier: Topic :: X\n", None),
        (b"", None),
        (None, None),
    ],
)
def test_a_licence_is_told_as_the_metadata_names_it_and_an_odd_one_stops_nothing(
    content: bytes | None, expected: str | None, tmp_path: Path
) -> None:
    package(tmp_path, "odd-1", content)
    (one,) = by_purl(valid(document(list(SBOM.python_packages(tmp_path, {}))))).values()
    told = [
        item.get("expression") or item["license"].get("id") or item["license"]["name"]
        for item in one.get("licenses", [])
    ]
    assert told == ([expected] if expected else [])


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["License", "License-Expression", "Classifier"]), max_size=4),
    st.lists(
        st.text(max_size=40) | st.sampled_from(["MIT AND", "(MIT)", "License ::"]), max_size=4
    ),
)
def test_no_licence_field_makes_an_invalid_document(names: list[str], values: list[str]) -> None:
    lines = [f"{name}: {value}" for name, value in zip(names, values, strict=False)]
    content = "\n".join(["Metadata-Version: 2.4", *lines]).encode("utf-8", "surrogatepass")
    found = SBOM.licences(content)
    component = SBOM.Component(name="any", licenses=found)
    valid(document([component]))


def test_the_program_runs_on_what_lies_beside_uv_in_a_build() -> None:
    """The build's own environment has the sets `uv` and `build`, and nothing of ours."""
    tree = ast.parse(PROGRAM.read_text(encoding="utf-8"))
    modules = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    providers = metadata.packages_distributions()
    needed = {
        str(canonicalize_name(providers[module][0])) for module in modules - sys.stdlib_module_names
    }
    pinned = {
        name
        for lock in ("uv", "build")
        for name, _ in SBOM.pins(LOCK.with_name(f"requirements.{lock}.txt").read_text("utf-8"))
    }
    assert needed
    assert needed <= pinned
