"""Takes the attestations out of an image that BuildKit wrote as an OCI layout (a folder).

    python attestations.py LAYOUT OUTPUT

The image's index names, beside the image, a manifest whose layers are the in-toto statements: how
the image was built (SLSA provenance) and what is inside (SPDX). Each becomes a JSON file. The
standard library is enough: a machine that only builds images has nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# By the start of a statement's type, whose end is a version.
NAMES = {
    "https://slsa.dev/provenance/": "provenance.json",
    "https://spdx.dev/Document": "sbom.spdx.json",
}


def _blob(layout: Path, described: dict[str, Any]) -> dict[str, Any]:
    algorithm, _, digest = described["digest"].partition(":")
    content: dict[str, Any] = json.loads((layout / "blobs" / algorithm / digest).read_bytes())
    return content


def statements(layout: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file name, statement) of every attestation that has a name."""
    top = json.loads((layout / "index.json").read_bytes())
    for index in top["manifests"]:
        for manifest in _blob(layout, index).get("manifests", []):
            if manifest.get("annotations", {}).get("vnd.docker.reference.type") is None:
                continue
            for layer in _blob(layout, manifest)["layers"]:
                kind = layer["annotations"]["in-toto.io/predicate-type"]
                for start, name in NAMES.items():
                    if kind.startswith(start):
                        yield name, _blob(layout, layer)


def main() -> None:
    """Write all of them, and fail where one is missing."""
    layout, output = map(Path, sys.argv[1:])
    found = dict(statements(layout))
    if missing := set(NAMES.values()) - found.keys():
        raise SystemExit(f"{layout} has no {', '.join(sorted(missing))}")
    output.mkdir(parents=True, exist_ok=True)
    for name, statement in found.items():
        (output / name).write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")
        print(f"{output / name}: {statement['predicateType']}")


if __name__ == "__main__":
    main()
