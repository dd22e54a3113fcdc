"""Gathers the facts of the node: who runs here, what can be written, what is asked to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.facts.host import Folder, HostFacts, cache_folders
from app.facts.job_target import JobTargetFacts
from app.plan import Plan
from app.probes.folders import probe_folder
from app.probes.job_target import look, search_path_here
from app.probes.limits import probe_limits
from app.probes.memory import probe_memory
from app.probes.mounts import mounts
from app.probes.node import account_facts, clock_facts, machine_facts
from app.probes.packages import probe_packages
from app.probes.shared_memory import probe_shared_memory
from app.probes.surroundings import probe_surroundings
from app.probes.toolchain import compiling, deadline_of

_PROC = Path("/proc")


def probe_host(plan: Plan, environ: Mapping[str, str], *, limit_s: float = 0.0) -> HostFacts:
    """Write to every folder that this boot will use, and read the rest.

    `limit_s` is the deadline of the stage, 0 for none: a compiler that hangs is named before it.
    """
    here, no_here = _working_folder()
    report = Folder("report", str(here / plan.report_dir), "BOOT_REPORT_DIR")
    folders = cache_folders(environ, plan.profile)
    table = mounts(_PROC)
    limits = probe_limits(_PROC)  # before a compiler takes some of what is left
    none_left = "too few processes can be started, as host.limits says" if limits.no_tasks else ""
    with compiling(plan, environ, deadline_of(limit_s), why_not=none_left) as toolchain:
        facts = HostFacts(
            account=account_facts(environ),
            limits=limits,
            clock=clock_facts(),
            report=probe_folder(report, table),
            caches=tuple(probe_folder(folder, table) for folder in folders.all()),
            machine=machine_facts(_PROC, environ),
            memory=probe_memory(_PROC),
            shared_memory=probe_shared_memory(),
            surroundings=probe_surroundings(environ),
            job=_job(plan, environ),
            packages=probe_packages(plan, environ),
            working_folder_errno=no_here,
            root_device=Path("/").stat().st_dev,
            toolchain=toolchain.facts(),  # last: it waits for the compiler
        )
    if not facts.hub_doubtful:
        return facts
    from app.probes.reach import locate_model  # rarely, and it brings Unsloth's tables along

    return replace(facts, model_at=locate_model(plan, environ))


def _working_folder() -> tuple[Path, int | None]:
    """Where relative paths begin; no folder, and why, where it was removed or does not answer."""
    try:
        return Path.cwd(), None
    except OSError as error:
        return Path(), error.errno


def _job(plan: Plan, environ: Mapping[str, str]) -> JobTargetFacts | None:
    """The job's target as the worker will look for it."""
    return None if plan.job is None else look(plan.job, search_path_here(environ))
