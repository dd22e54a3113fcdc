"""`python -m tests.gpu.once KIND` prints the fingerprint of a tiny model, as JSON at the end."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import cast

from tests.gpu import subject
from tests.gpu.models import bare
from tests.tiny_models import Kind


def main(kind: Kind) -> None:
    """In a process that has done nothing else."""
    found = subject.here()
    if isinstance(found, str):
        raise SystemExit(found)
    loaded = bare(kind, found.profile)
    from app.engine import fingerprint

    facts = fingerprint.take(loaded.model, loaded.plan)
    sys.stdout.write(json.dumps(asdict(facts)) + "\n")


if __name__ == "__main__":
    main(cast("Kind", sys.argv[1]))
