"""The stages of a boot, in order. A leaf: imports nothing of the app."""

from __future__ import annotations

SUPERVISOR_STAGES: tuple[str, ...] = ("settings", "host", "gpu", "cache", "checkpoint")
WORKER_STAGES: tuple[str, ...] = ("stack", "load", "precision", "adapter", "numerics")
LATER_STAGES: tuple[str, ...] = ("collective", "job")  # there only where they are asked for

STAGES: tuple[str, ...] = SUPERVISOR_STAGES + WORKER_STAGES + LATER_STAGES
