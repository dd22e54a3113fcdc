"""Writes an image's bill of materials: CycloneDX 1.6 as JSON, of what is really installed.

    python sbom.py --output /opt/bootguard/sbom.cdx.json

The build's last stage runs it, after image.json is written, by the interpreter that holds
`requirements.build.txt`. It lists the Python packages of the environment, the packages of the
system, and the image itself as that which they make up. The same content gives the same file:
all is sorted, the serial number is made from the content, and the only time in it is
SOURCE_DATE_EPOCH. An image made `FROM` this one is not described by it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

_HOME = Path("/opt/bootguard")
_DPKG = Path("/var/lib/dpkg")
_FIELDS = ("Package", "Version", "Architecture", "source:Package", "source:Version")
_STATUS = "db:Status-Status"
# dpkg remembers these, but none of their programs is on the disk.
_GONE = {"not-installed", "config-files"}
_LONGEST_NAME = 100  # characters; a longer licence field holds the text, not the name
_NAMESPACE = uuid.UUID("6f1f2a2e-5f0b-5a53-9d0e-7b1f6c0f3c5d")

# A package's (name, version) with the sha256 of every file that a lock allows for it.
Pins = Mapping[tuple[str, str], list[str]]


def pins(lock: str) -> Pins:
    """What a lock file pins; one package may stand in it once per Python."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in lock.replace("\\\n", " ").splitlines():
        if pin := re.match(r"([\w.-]+)==([^\s;]+)", line):
            key = (str(canonicalize_name(pin[1])), pin[2])
            found[key] = sorted({*found.get(key, []), *re.findall(r"sha256:([0-9a-f]{64})", line)})
    return found


def licences(content: bytes) -> list[License]:
    """A package's licence as its METADATA tells; nothing where that tells none that is a name."""
    told, _ = parse_email(content)  # what it cannot make sense of is left out
    for stated in (told.get("license_expression"), told.get("license")):
        name = (stated or "").strip()
        if name.isprintable() and name not in {"", "UNKNOWN"} and len(name) <= _LONGEST_NAME:
            return [LicenseFactory().make_from_string(name)]
    classified = {
        line.split("::")[-1].strip()
        for line in told.get("classifiers", [])
        if line.startswith("License ::") and line.isprintable()
    }
    return [LicenseFactory().make_with_name(name) for name in sorted(classified) if name]


def python_packages(site: Path, locked: Pins) -> Iterator[Component]:
    """The packages below one site-packages folder, each named by its `.dist-info` folder."""
    for folder in site.glob("*.dist-info"):
        name, _, version = folder.stem.rpartition("-")
        purl = PackageURL("pypi", None, str(canonicalize_name(name)), version)
        told = folder / "METADATA"
        hashes = locked.get((purl.name, version), [])
        # Of several wheels, one a Python, the lock does not say which is the installed one.
        exact = len(hashes) == 1
        yield Component(
            type=ComponentType.LIBRARY,
            name=purl.name,
            version=version,
            purl=purl,
            bom_ref=purl.to_string(),
            licenses=licences(told.read_bytes() if told.is_file() else b""),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in hashes if exact],
            properties=[
                Property(name="bootguard:lock-sha256", value=one) for one in hashes if not exact
            ],
        )


def system_packages(admin: Path, system: Mapping[str, str]) -> Iterator[Component]:
    """The packages that dpkg knows as installed, each with the source it was built from."""
    line = "\t".join(f"${{{field}}}" for field in (_STATUS, *_FIELDS)) + "\n"
    command = ["dpkg-query", f"--admindir={admin}", "--show", f"--showformat={line}"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    release = "-".join(filter(None, (system["ID"], system.get("VERSION_ID"))))
    for package in listed.splitlines():
        status, name, version, arch, source, source_version = package.split("\t")
        if status in _GONE:
            continue
        qualifiers = {"arch": arch, "distro": release}
        if (source, source_version) != (name, version):
            # Scanners look vulnerabilities up by the source's name and version.
            qualifiers["upstream"] = f"{source}@{source_version}"
        purl = PackageURL("deb", system["ID"], name, version, qualifiers)
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            purl=purl,
            bom_ref=purl.to_string(),
        )


def described(image: Mapping[str, Any]) -> Component:
    """The image itself, by what its image.json says; not when, which changes with every build."""
    told = {key: " ".join(map(str, value)) for key, value in image.items() if type(value) is list}
    told |= {key: str(value) for key, value in image.items() if type(value) in {str, int}}
    return Component(
        type=ComponentType.CONTAINER,
        name=f"bootguard-{image['profile']}",
        version=image.get("revision"),
        bom_ref="image",
        properties=[
            Property(name=f"bootguard:{key.replace('_', '-')}", value=value)
            for key, value in told.items()
            if value and key != "built"
        ],
    )


def document(
    image: Component, system: Mapping[str, str], packages: Iterable[Component], epoch: str
) -> str:
    """The whole document; `epoch` is a time in seconds since 1970, or nothing."""
    release = Component(
        type=ComponentType.OPERATING_SYSTEM,
        name=system["ID"],
        version=system.get("VERSION_ID"),
        bom_ref="system",
    )
    bom = Bom(
        components=[release, *packages],
        serial_number=_NAMESPACE,
        metadata=BomMetaData(
            component=image, timestamp=datetime.fromtimestamp(int(epoch or 0), UTC)
        ),
    )
    tool = "cyclonedx-python-lib"
    bom.metadata.tools.components.add(
        Component(type=ComponentType.LIBRARY, name=tool, version=metadata.version(tool))
    )
    bom.register_dependency(image, bom.components)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    content: dict[str, Any] = json.loads(text)
    timestamp = content["metadata"].pop("timestamp")
    del content["serialNumber"]
    serial = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True))
    if epoch:
        content["metadata"]["timestamp"] = timestamp
    return json.dumps(content | {"serialNumber": f"urn:uuid:{serial}"}, indent=2, sort_keys=True)


def _site(venv: Path) -> Path:
    (site,) = venv.glob("lib/python3*/site-packages")
    return site


def main() -> None:
    """Describe the image this runs in, and write it down."""
    parser = argparse.ArgumentParser(description="Write an image's bill of materials.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--venv", type=Path, default=_HOME / "venv")
    parser.add_argument("--lock", type=Path, default=_HOME / "requirements.txt")
    parser.add_argument("--image", type=Path, default=_HOME / "image.json")
    parser.add_argument("--dpkg", type=Path, default=_DPKG, help="the folder dpkg keeps")
    given = parser.parse_args()

    locked = pins(given.lock.read_text(encoding="utf-8"))
    image = described(json.loads(given.image.read_text(encoding="utf-8")))
    system = platform.freedesktop_os_release()
    python = list(python_packages(_site(given.venv), locked))
    debs = list(system_packages(given.dpkg, system))
    text = document(image, system, [*python, *debs], os.environ.get("SOURCE_DATE_EPOCH", ""))
    beside = given.output.with_name(given.output.name + ".new")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.chmod(0o644)
    beside.replace(given.output)
    print(f"{given.output}: {len(python)} Python packages, {len(debs)} of {system['ID']}")


if __name__ == "__main__":
    main()
