"""What the proofs look at: the environment of this image, and children that run in it."""

from __future__ import annotations

import functools
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.facts.host import HostFacts
from app.facts.packages import PackagesFacts
from app.facts.words import error_text, signal_name
from app.plan import Plan
from app.probes.host import probe_host
from app.probes.packages import probe_packages

# Where `app` lies: a child finds it there whatever its working folder is.
ROOT = Path(__file__).resolve().parent.parent.parent
# For one child: an import of the stack takes 10 s, and minutes from a disk that others use too.
_LONGEST_S = 900.0
# Variables that move what a proof would see: of users, not of images.
_DROPPED = ("BOOT_", "BNB_", "TRITON_", "UNSLOTH_", "HF_", "PYTHON", "TMP", "TEMP", "XDG_")


def own_site() -> Path:
    """The folder that this interpreter's packages are installed in; not that of the base's own."""
    return Path(sysconfig.get_path("purelib"))


def clean(environ: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The image's variables for a child that writes nowhere but into `scratch`."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_DROPPED)}
    return kept | {
        "HOME": str(scratch),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "HF_HOME": str(scratch / "hub"),
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(scratch),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "UNSLOTH_DISABLE_STATISTICS": "1",
    }


@dataclass(frozen=True, slots=True)
class Ran:
    """How a child ended; `problem` is empty where that was with 0."""

    out: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Scene:
    """One image under proof.

    `variables` are what children get (`clean`), `scratch` the one folder that may be written.
    `wanted` maps a package to the version that should be installed, by `wanted_by`; `derived` says
    that other versions are somebody's choice.
    """

    plan: Plan
    variables: Mapping[str, str]
    scratch: Path
    wanted: Mapping[str, str]
    wanted_by: str
    derived: bool = False
    site: Path = field(default_factory=own_site)

    @functools.cached_property
    def packages(self) -> PackagesFacts:
        """What is installed, by its files."""
        place = (str(self.site),)
        return probe_packages(self.plan, self.variables, place, place)

    @functools.cached_property
    def host(self) -> HostFacts:
        """What the host stage of a boot would see here."""
        return probe_host(self.plan, self.variables)

    def run(self, *arguments: str, deadline_s: float = _LONGEST_S) -> Ran:
        """This interpreter as a child, with these arguments."""
        return run([sys.executable, "-P", *arguments], self.variables, self.scratch, deadline_s)


def run(
    command: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    deadline_s: float = _LONGEST_S,
) -> Ran:
    """Run a program in `folder`; its problem ends in the last line that it wrote."""
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        told = (error.stdout or b"").decode(errors="replace")
        return Ran(told, f"no end within {deadline_s:g} s")
    except OSError as error:
        return Ran(problem=error_text(error))
    out = done.stdout.decode(errors="replace")
    if not done.returncode:
        return Ran(out)
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    how = f"status {done.returncode}"
    if done.returncode < 0:
        how = f"signal {signal_name(-done.returncode)}"
    return Ran(out, f"{how}: {last}" if last else how)
