"""Whether a boot may have to reach the hub: what is wrong with the network matters only then."""

from __future__ import annotations

from app.plan import Plan

# What names a model on this machine; anything else is a repository of the hub.
_LOCAL = ("/", "./", "../", "rehearsal:")


def fetches(plan: Plan, offline: str | None) -> bool:
    """False where certainly nothing is fetched; True also where the cache may turn out to have all.

    `offline` is the variable that forbids the network, if one does.
    """
    local = plan.request.base_model_id.startswith(_LOCAL)
    return plan.download != "never" and offline is None and not local
