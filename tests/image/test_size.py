"""Facts about the image's size: within its budget, and the budget close above it."""

from __future__ import annotations

import subprocess
import sys

from tests.containers.engine import IMAGE as BASE
from tests.image.checkout import ROOT
from tests.image.engine import Image


def test_the_size_is_within_a_budget_that_fits(image: Image, told: list[str]) -> None:
    command = [sys.executable, "scripts/image_size.py", image.tag, "--base", BASE]
    done = subprocess.run(
        [*command, "--budget", image.profile], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told.append(done.stdout.rstrip())
    assert done.returncode == 0, done.stdout + done.stderr
