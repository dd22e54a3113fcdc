"""Whether a boot will reach the hub, and write to its cache: what is wrong there matters only then.

Nothing is fetched for a model in a folder, where downloads are forbidden, and where the cache holds
the whole model.
"""

from __future__ import annotations

import errno

from app.facts.disk import RIGHTS
from app.facts.host import FolderFacts, HostFacts, ModelAt
from app.plan import Plan

# What names a model on this machine; anything else is a repository of the hub, or a folder here.
_LOCAL = ("/", "./", "../", "~", "$", "rehearsal:")


def fetches(plan: Plan, facts: HostFacts) -> bool:
    """False where certainly nothing is fetched; True also where that was not looked at."""
    if plan.download == "never" or facts.surroundings.offline is not None:
        return False
    if plan.request.base_model_id.startswith(_LOCAL):
        return False
    return facts.model_at in (ModelAt.UNTOLD, ModelAt.HUB)


def only_read(found: FolderFacts, plan: Plan, facts: HostFacts) -> bool:
    """Whether it is the hub's cache, not to be written, and this boot will not write to it either.

    Volumes that share models are often read-only. What a boot that must not download lacks in such
    a cache, the cache stage says.
    """
    if found is not facts.hub or found.errno not in RIGHTS:
        return False
    if facts.model_at is ModelAt.FOLDER:
        # A mount is read-only on purpose; rights that are lacking are mostly a mistake, which
        # a job that loads data sets would hit.
        return found.errno == errno.EROFS
    if facts.model_at is ModelAt.HUB:
        return not fetches(plan, facts)
    return facts.model_at is ModelAt.CACHE
