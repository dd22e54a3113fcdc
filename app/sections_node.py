"""The report's account of the node: what the host stage saw besides what its checks judge."""

from __future__ import annotations

from app.sections import Section


class Node(Section):
    """The machine and the container as this process sees them; None is what could not be read."""

    machine: str
    kernel: str
    n_cpus: int
