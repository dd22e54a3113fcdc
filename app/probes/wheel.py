"""Reads what torch's wheel was built for, without importing torch."""

from __future__ import annotations

from app.plan import Baked


def torch_architectures(baked: Baked | None) -> tuple[tuple[str, ...], str]:
    """Architectures such as `sm_90`, and who says so; empty where it cannot be known."""
    return (baked.architectures, "image.json") if baked is not None else ((), "")
