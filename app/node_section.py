"""The report's `node`, from what the host stage found."""

from __future__ import annotations

import os

from app.facts.host import HostFacts
from app.sections_node import Node


def node_section(facts: HostFacts) -> Node:
    """The machine as this process sees it."""
    found = os.uname()
    return Node(machine=found.machine, kernel=found.release, n_cpus=facts.n_cpus)
