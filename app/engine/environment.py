"""The one place that writes environment variables, before any heavy import. Imports none itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from types import MappingProxyType

from app.facts.account import user_name
from app.facts.host import cache_folders
from app.facts.surroundings import offline_variable
from app.profiles import Profile

# Whatever the user set: each of these decides whether a boot is right or ends at all.
_FORCED = {
    # Telemetry at every load probes a public address and the hub, for up to 120 s, and can raise.
    "UNSLOTH_DISABLE_STATISTICS": "1",
    # A bundle of compiled code in the home folder, one for all profiles; never wanted here.
    "UNSLOTH_MEGA_CACHE": "0",
}

# The engine loads a local folder and nothing else. A try to reach the hub is a bug that would hang
# on an isolated node, so it must fail at once. Unsloth sets all three when it finds one.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

# Only where the user has no opinion: harmless either way.
_DEFAULTS = {
    # Silences a warning per forked data loader; the threads would fight over the same cores.
    "TOKENIZERS_PARALLELISM": "false",
    # Nobody is asked whether a guard may report home.
    "HF_HUB_DISABLE_TELEMETRY": "1",
}

# Read by unsloth and unsloth_zoo 2026.10.9, and each changes what is computed or on what, behind
# the report's back. Settings refuse the first two groups by name; in-process callers get them
# cleared. `UNSLOTH_FORCE_FLOAT32` is also written by Unsloth at every load, for that load only.
_CLEARED_PREFIXES = ("UNSLOTH_FORCE_",)
_CLEARED = (
    "UNSLOTH_ALLOW_CPU",  # takes CUDA branches without a device
    "UNSLOTH_ZOO_DISABLE_GPU_INIT",  # answers "cpu" although there is a device
    "UNSLOTH_CPU_LOAD_IN_4BIT",  # 0: 4-bit silently off in the rehearsal
    "UNSLOTH_CPU_FROZEN_BF16",  # 1: the rehearsal's frozen weights in another dtype than asked
)
# Set by Unsloth itself on a container with pinned devices; speed only.
_KEPT = ("UNSLOTH_FORCE_SINGLE_COMPILE_WORKER",)


@dataclass(frozen=True, slots=True)
class Pinned:
    """What `pin` did: variables with the value they now have, and the names it removed."""

    variables: Mapping[str, str]
    cleared: tuple[str, ...]


def pin(
    profile: Profile,
    environ: MutableMapping[str, str] = os.environ,
    *,
    offline: bool = True,
) -> Pinned:
    """Set what the heavy imports read, for this profile. Doing it twice changes nothing.

    `offline=False` is for callers whose process goes on to load data sets from the hub.
    """
    # Before anything is cleared or set: these rules read what the user has chosen.
    folders = cache_folders(environ, profile).environment()
    cleared = tuple(sorted(name for name in environ if _is_cleared(name)))
    for name in cleared:
        del environ[name]
    network = _OFFLINE if offline else {}
    wanted = {**folders, **user_name(environ), **_FORCED, **network, **dict(profile.environment)}
    environ.update(wanted)
    for name, value in _DEFAULTS.items():
        environ.setdefault(name, value)
    names = (*wanted, *_DEFAULTS)
    return Pinned(MappingProxyType({name: environ[name] for name in names}), cleared)


def network_as_given(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the user has said of the hub; to be asked before `pin` closes it to the engine."""
    return {name: environ[name] for name in _OFFLINE if name in environ}


def open_network(given: Mapping[str, str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Let a job reach the hub again, unless the user has forbidden it: data sets, push_to_hub.

    The libraries have read their variables when they were imported, so they are told as well.
    """
    for name in _OFFLINE:
        environ.pop(name, None)
    environ.update(given)
    if offline_variable(environ) is None:
        for name in ("huggingface_hub.constants", "datasets.config"):
            if name in sys.modules:
                vars(sys.modules[name])["HF_HUB_OFFLINE"] = False


def _is_cleared(name: str) -> bool:
    return name not in _KEPT and (name.startswith(_CLEARED_PREFIXES) or name in _CLEARED)
