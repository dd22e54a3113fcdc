"""What is set before heavy imports, and what a user may still decide."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.engine.environment import pin
from app.profiles import PROFILES, V100, Profile

HOME = {"HOME": "/home/user"}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_each_profile_generates_code_in_a_folder_of_its_own(profile: Profile) -> None:
    environ = dict(HOME)
    pin(profile, environ)
    for name in ("UNSLOTH_COMPILE_LOCATION", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert environ[name].startswith(f"/home/user/.cache/bootguard/{profile.name}/")
    assert environ.items() >= dict(profile.environment).items()


def test_telemetry_and_the_network_are_off_whatever_the_user_set() -> None:
    environ = HOME | {"UNSLOTH_DISABLE_STATISTICS": "", "HF_HUB_OFFLINE": "0"}
    pin(V100, environ)
    assert environ["UNSLOTH_DISABLE_STATISTICS"] == "1"
    assert environ["HF_HUB_OFFLINE"] == environ["TRANSFORMERS_OFFLINE"] == "1"


def test_in_a_users_process_the_hub_stays_within_reach() -> None:
    environ = dict(HOME)
    pin(V100, environ, offline=False)
    assert not [name for name in environ if name.endswith("OFFLINE")]


def test_harmless_choices_of_the_user_are_kept() -> None:
    chosen = {"TOKENIZERS_PARALLELISM": "true", "TRITON_CACHE_DIR": "/scratch/triton"}
    environ = HOME | chosen
    pin(V100, environ)
    assert environ.items() >= chosen.items()


def test_what_changes_the_arithmetic_is_cleared_and_named() -> None:
    environ = HOME | {
        "UNSLOTH_FORCE_FLOAT32": "1",
        "UNSLOTH_ALLOW_CPU": "1",
        "UNSLOTH_CPU_LOAD_IN_4BIT": "0",
        "UNSLOTH_FORCE_SINGLE_COMPILE_WORKER": "1",
    }
    pinned = pin(V100, environ)
    assert pinned.cleared == (
        *("UNSLOTH_ALLOW_CPU", "UNSLOTH_CPU_LOAD_IN_4BIT", "UNSLOTH_FORCE_FLOAT32"),
    )
    assert not environ.keys() & set(pinned.cleared)
    assert environ["UNSLOTH_FORCE_SINGLE_COMPILE_WORKER"] == "1"


AS_A_FOREIGN_UID = """
import getpass, os, sys
from app.engine.environment import pin
from app.profiles import V100
os.setuid(54321)
environ = dict(item.split("=") for item in sys.argv[1:])
pinned = pin(V100, environ)
os.environ.clear()
os.environ.update(environ)
print(getpass.getuser(), "USER" in pinned.variables)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another uid")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("HOME=/h",), "uid54321 True"),
        (("HOME=/h", "USER=", "LOGNAME="), "uid54321 True"),
        (("HOME=/h", "USER=jo"), "jo False"),
    ],
)
def test_a_uid_without_account_gets_a_name_and_keeps_its_own(
    given: tuple[str, ...], expected: str
) -> None:
    """Else `getpass.getuser` raises, which torch 2.10 calls while it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", AS_A_FOREIGN_UID, *given],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


def test_who_has_an_account_gets_no_other_name() -> None:
    environ = dict(HOME)
    pin(V100, environ)
    assert not environ.keys() & {"USER", "LOGNAME"}


def test_pinning_twice_changes_nothing() -> None:
    environ = dict(HOME)
    first = pin(V100, environ)
    once = dict(environ)
    assert pin(V100, environ) == first
    assert environ == once
