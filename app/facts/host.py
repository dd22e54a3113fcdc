"""Facts of the node, the account and the job, and where the caches lie. Standard library only.

`cache_folders` is the one place that decides a cache's path: the host stage probes those paths,
the cache stage downloads into them, and the engine pins them before any heavy import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.facts.account import account_home, home_named
from app.facts.disk import NETWORK
from app.facts.job_target import JobTargetFacts
from app.facts.node import AccountFacts, ClockFacts, LimitFacts, MachineFacts, SharedMemoryFacts
from app.facts.packages import PackagesFacts
from app.facts.surroundings import Surroundings
from app.facts.toolchain import ToolchainFacts
from app.profiles import GIB, Profile

# Unsloth's 4-bit Gemma 3n E2B is about 8 GB, and the hub writes a shard before it names it.
ROOM_FOR_MODEL = 12 * GIB


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that something will write to. `variable` is the setting that moves it."""

    purpose: str
    path: str
    variable: str
    empty: bool = False  # the variable is set, to nothing
    made: bool = True  # by whoever writes there, where it is missing


@dataclass(frozen=True, slots=True)
class CacheFolders:
    """Where every library of the stack will write, as text: a literal `~` must stay visible.

    `root` is bootguard's own, below it one folder per profile: code that Unsloth, Triton and
    Inductor generate differs by precision and must never be shared between profiles.
    """

    hub: Folder
    root: Folder
    unsloth: Folder
    triton: Folder
    inductor: Folder
    temporary: Folder

    def all(self) -> tuple[Folder, ...]:
        """Every folder, in the order in which findings name them."""
        return (self.hub, self.root, self.unsloth, self.triton, self.inductor, self.temporary)

    def environment(self) -> dict[str, str]:
        """The variables to set before heavy imports, so that the libraries use these folders."""
        return {
            folder.variable: folder.path for folder in (self.unsloth, self.triton, self.inductor)
        }


def cache_folders(environ: Mapping[str, str], profile: Profile) -> CacheFolders:
    """Resolve the cache folders from these variables, by the libraries' own rules.

    The hub's rule is that of huggingface_hub 1.33 (`constants.py`): HF_HUB_CACHE, else the legacy
    HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, else below XDG_CACHE_HOME or ~/.cache; `~` and `$NAME`
    are expanded. Where HOME is unset the account database answers, and a uid without an entry
    leaves a literal `~`, as in Python's `expanduser`.
    """
    home_cache = expand("~/.cache", environ)
    # An empty variable counts as unset for the root, as the XDG specification wants; to
    # huggingface_hub each of its own is a relative path.
    root = _join(environ.get("XDG_CACHE_HOME") or home_cache, "bootguard")
    own = _join(root, profile.name)
    return CacheFolders(
        hub=_hub(environ, home_cache),
        root=Folder("bootguard's cache", root, "XDG_CACHE_HOME"),
        unsloth=_own(
            environ, "UNSLOTH_COMPILE_LOCATION", "Unsloth's generated code", own, "unsloth"
        ),
        triton=_own(environ, "TRITON_CACHE_DIR", "Triton's kernels", own, "triton"),
        inductor=_own(environ, "TORCHINDUCTOR_CACHE_DIR", "Inductor's code", own, "inductor"),
        temporary=_temporary(environ),
    )


def _hub(environ: Mapping[str, str], home_cache: str) -> Folder:
    """The first variable that is set decides; with none XDG_CACHE_HOME would move it."""
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
    variable = next((name for name in names if name in environ), names[-1])
    path = environ.get(variable, home_cache)
    if variable == "XDG_CACHE_HOME":
        path = _join(path, "huggingface")
    if not variable.endswith("HUB_CACHE"):
        path = _join(expand(path, environ), "hub")
    return Folder(
        "Hugging Face cache", expand(path, environ), variable, empty=environ.get(variable) == ""
    )


def _own(environ: Mapping[str, str], variable: str, purpose: str, own: str, name: str) -> Folder:
    return Folder(purpose, environ.get(variable) or _join(own, name), variable)


def _join(folder: str, name: str) -> str:
    """As text: `Path` would turn an empty folder, which is a mistake to be seen, into `.`."""
    return os.path.join(folder, name)  # noqa: PTH118


def _temporary(environ: Mapping[str, str]) -> Folder:
    """The first candidate of Python's `tempfile`; that it silently tries others is the trap.

    No program makes a missing one: what is misspelt is to be seen, and not to be a new folder.
    """
    named = next((name for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name)), "TMPDIR")
    path = environ.get(named) or "/tmp"  # noqa: S108 - the libraries' default
    return Folder("temporary files", path, named, made=False)


def expand(path: str, environ: Mapping[str, str]) -> str:
    """`os.path.expandvars(os.path.expanduser(path))` over a mapping instead of this process."""
    head, slash, rest = path.partition("/")
    if head.startswith("~"):
        home = environ.get("HOME") if head == "~" else home_named(head[1:])
        if home is None and head == "~":
            home = account_home(os.getuid())
        path = path if home is None else (home.rstrip("/") + slash + rest) or "/"
    return re.sub(
        r"\$(?:(\w+)|\{([^}]*)\})",
        lambda found: environ.get(found[1] or found[2] or "", found[0]),
        path,
    )


def size(n_bytes: int | None) -> str:
    """A number of bytes as a person reads it."""
    if n_bytes is None:
        return "unknown"
    return f"{n_bytes / GIB:.1f} GiB" if n_bytes >= GIB else f"{n_bytes / 2**20:.0f} MiB"


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """One folder after a real write: create, fsync, rename, unlink.

    `problem` is empty when all four worked, else one line; `errno` is the system's number behind
    it, None for a path that is wrong by itself. Sizes in bytes, None where they were not read.
    """

    folder: Folder
    problem: str = ""
    errno: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_inodes: int | None = None  # to this account; None too where the file system counts none
    device: int | None = None  # folders of one file system share its room
    file_system: str = ""  # its type, as in /proc/self/mountinfo
    executable: bool | None = None  # whether code in a file there can be mapped
    lock_errno: int | None = None  # of a refused flock, which the hub's client takes on downloads

    @property
    def on_network(self) -> bool:
        """Whether other machines can write there too, and a server has to answer."""
        return self.file_system in NETWORK

    @property
    def on_fuse(self) -> bool:
        """Whether a program answers for the file system; many such report no free room at all."""
        return self.file_system.startswith("fuse")


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Memory of the machine and what the control groups leave of it, in bytes.

    `limit_bytes` is the smallest limit over all parent groups (`limited_by` is its file), None
    where nothing limits; `available_bytes` is what can be had now under both.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    limited_by: str = ""
    swap_bytes: int | None = None  # free swap of the machine; not part of `available_bytes`


class ModelAt(StrEnum):
    """Where the model lies. What is wrong with the way to the hub matters only where it is used."""

    UNTOLD = "untold"  # not looked at: nothing is wrong, or the model is the rehearsal
    FOLDER = "folder"
    CACHE = "cache"  # whole, in the hub's cache
    HUB = "hub"  # there, if anywhere: the cache has it not, or not whole


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The node and the account, and the job's target as its files show it, where one is asked.

    `working_folder_errno` says why the working folder has no path, None where it has one.
    `root_device` is the number of the device that `/` lies on, as `FolderFacts.device` is.
    """

    account: AccountFacts
    limits: LimitFacts
    clock: ClockFacts
    report: FolderFacts
    caches: tuple[FolderFacts, ...]
    machine: MachineFacts = field(default_factory=MachineFacts)
    memory: MemoryFacts = field(default_factory=MemoryFacts)
    shared_memory: SharedMemoryFacts = field(default_factory=SharedMemoryFacts)
    surroundings: Surroundings = field(default_factory=Surroundings)
    job: JobTargetFacts | None = None
    toolchain: ToolchainFacts = field(default_factory=lambda: ToolchainFacts("it was not tried"))
    packages: PackagesFacts | None = None
    model_at: ModelAt = ModelAt.UNTOLD
    working_folder_errno: int | None = None
    root_device: int | None = None

    @property
    def hub(self) -> FolderFacts:
        """The hub's cache."""
        return self.caches[0]

    @property
    def hub_doubtful(self) -> bool:
        """Whether something is amiss that does no harm where nothing is fetched."""
        room = self.hub.free_bytes
        return (
            any(each.problem for each in self.surroundings.proxies)
            or any(each.problem for each in self.surroundings.trust)
            or self.clock.now < self.clock.built
            or bool(self.hub.problem)
            or (room is not None and room < ROOM_FOR_MODEL)
        )
