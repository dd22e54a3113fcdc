"""Facts about secrets: what the build was given, and what lay beside the sources, is nowhere in it.

The index that the packages came from wanted its password (`tests/image/index.py`).
"""

from __future__ import annotations

import json
import subprocess

from tests.containers.engine import docker
from tests.image.engine import Image


def test_no_secret_is_in_the_history_or_the_configuration(image: Image) -> None:
    told = docker("history", "--no-trunc", "--format={{json .}}", image.tag).stdout
    told += json.dumps(image.inspected)
    assert "finish.sh" in told  # the history is there
    assert [secret for secret in image.hidden if secret in told] == []


def test_no_secret_is_in_a_layer(image: Image) -> None:
    """Files that a later layer hides are in the stream too."""
    marked = ["bootguard-test", *image.hidden]  # the first one is the image's name in the manifest
    patterns = [f"--regexp={word}" for word in marked]
    with subprocess.Popen(["docker", "save", image.tag], stdout=subprocess.PIPE) as save:
        command = ["grep", "--text", "--only-matching", "--fixed-strings", *patterns]
        found = subprocess.run(command, stdin=save.stdout, capture_output=True, text=True,
                               check=False, env={"LC_ALL": "C"})  # fmt: skip
    assert save.returncode == 0
    assert set(found.stdout.split()) == {marked[0]}
