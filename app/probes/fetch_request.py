"""What is to be found on the hub or in its cache, and what may be used for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from app.facts.surroundings import offline_variable
from app.limits import NEVER
from app.plan import Plan
from app.probes.hub_cache import DEFAULT_REVISION, repository_folder

HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Means:
    """What the stage may use: time, and ways to tell how far it is.

    `limit_s` is the time from `began` (monotonic) to the deadline, and `limit` the setting that it
    comes from, with its value. After `stall_s` without a new byte a download is started again.
    `terminal` is the path of a descriptor that may be a terminal.
    """

    limit_s: float = 3600.0
    stall_s: float = 60.0
    wait: Callable[[float], None] = time.sleep
    say: Callable[[str], object] = lambda _text: None
    terminal: str | None = None
    limit: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def limit_name(self) -> str:
        """The setting with its value; the stage's own where none is given."""
        return self.limit or f"BOOT_CACHE_TIMEOUT_S={self.limit_s:g}"

    @property
    def setting(self) -> str:
        """The setting alone."""
        return self.limit_name.partition("=")[0]

    @property
    def allowed_s(self) -> float:
        """The time to use: the finding must come before the deadline, which kills.

        What is left takes half a second on a node with nothing else to do: a child is ended, and
        what it began is removed.
        """
        if self.limit_s >= NEVER:
            return NEVER
        return self.limit_s - min(5.0, max(0.1 * self.limit_s, min(1.0, 0.4 * self.limit_s)))

    @property
    def left_s(self) -> float:
        """Seconds to the end of that; none or less where it is over."""
        return self.began + self.allowed_s - time.monotonic()


@dataclass(frozen=True, slots=True)
class Request:
    """A repository of the hub, after Unsloth's mapping, and the folder of the hub's cache."""

    repository: str
    cache: str
    plan: Plan
    variables: Mapping[str, str]
    token: str | None
    means: Means

    @property
    def asked(self) -> str:
        """The name before the mapping."""
        return self.plan.request.base_model_id

    @property
    def branch(self) -> str:
        """The revision as the hub knows it."""
        return self.plan.revision or DEFAULT_REVISION

    @property
    def endpoint(self) -> str | None:
        """The address of a hub that is not the public one."""
        return self.variables.get("HF_ENDPOINT", "").rstrip("/") or None

    @property
    def host(self) -> str:
        """Who is asked."""
        return urlsplit(self.endpoint or HUB).hostname or "the hub"

    @property
    def base(self) -> Path:
        """The repository's folder in the cache."""
        return repository_folder(self.cache, self.repository)

    @property
    def offline(self) -> str | None:
        """The variable that forbids the network, None when none does."""
        return offline_variable(self.variables)

    @property
    def may_ask(self) -> bool:
        """Whether the hub may be asked."""
        return self.plan.download == "if-missing" and self.offline is None
