"""The names of what a boot makes in its folders only to try them. Touches no file.

One boot has one name, so that whoever ends it can remove what its preflight was killed over. A
listing may be refused, or long; and no process id is in the name, since two containers that share a
volume often have the same ones, and what the other one is just trying must stay.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from app.facts.host import cache_folders
from app.plan import Plan

PROBE = ".bootguard-probe-"
# Made once in a process: the preflight is a fork of the supervisor, and so has the same.
FILE = f"{PROBE}{secrets.token_hex(8)}"
RENAMED = f"{FILE}.renamed"
COMPILED = f"{FILE}.compiled"  # a folder


def scratch_of(plan: Plan, environ: Mapping[str, str]) -> list[Path]:
    """Every path that the host stage makes and removes again, the report's folder first."""
    folders = [plan.report_dir]
    folders += [Path(each.path) for each in cache_folders(environ, plan.profile).all()]
    return [folder / name for folder in folders for name in (FILE, RENAMED, COMPILED)]
