"""Whether the model lies whole on this machine, so that the hub will not be asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from app.errors import BootError
from app.facts.host import ModelAt, cache_folders, expand
from app.plan import Plan
from app.probes.hub_cache import find_snapshot
from app.probes.names import read_tables, unsloth_models_folder


def locate_model(plan: Plan, environ: Mapping[str, str]) -> ModelAt:
    """Where the cache stage will find it, by the rules of that stage.

    Reading Unsloth's tables takes some ten milliseconds, so this is asked only where something is
    wrong with the way to the hub. What cannot be read is not here: the cache stage says why.
    """
    asked = plan.request.base_model_id
    if asked.startswith("rehearsal:"):
        return ModelAt.UNTOLD
    try:
        if Path(expand(asked, environ)).is_dir():
            return ModelAt.FOLDER
        name = asked
        if plan.profile.needs_gpu:  # the CPU backend maps no names
            tables = read_tables(unsloth_models_folder())
            name = tables.resolve(asked, load_in_4bit=plan.request.load_in_4bit)
        cache = cache_folders(environ, plan.profile).hub.path
        found = find_snapshot(cache, name, plan.revision, pickles=plan.allow_pickle)
    except (OSError, ValueError, BootError):
        return ModelAt.HUB
    whole = found is not None and not found.lacking and not found.in_doubt
    return ModelAt.CACHE if whole else ModelAt.HUB
