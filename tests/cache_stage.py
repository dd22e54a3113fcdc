"""The cache stage for tests: one model asked for, and all that came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import HfApi, close_session, constants

from app.checks.cache import CHECKS
from app.exits import ExitCode, exit_code
from app.facts.cache import CacheFacts
from app.outcome import Finding
from app.probes.fetch_request import Means
from app.probes.hub import resolve_model
from app.probes.hub_answer import Cause, CauseError
from app.probes.hub_cache import repository_folder
from app.probes.hub_errors import cause_of
from app.probes.hub_questions import commit_of
from tests.fake_hub import Hub
from tests.fakes_preflight import TOKEN, findings, plan_for

NOBODY = "http://127.0.0.1:9"  # an address that refuses connections
REPOSITORY = "org/tiny"


def base_of(folder: Path) -> Path:
    """The repository's folder in the cache that `Asked` uses."""
    return repository_folder(str(folder / "hub"), REPOSITORY)


class Asked:
    """What came of asking a hub, with a cache of its own; waits are noted, and not waited."""

    def __init__(
        self,
        folder: Path,
        url: str = NOBODY,
        environ: Mapping[str, str] | None = None,
        *,
        token: str | None = TOKEN,
        stall_s: float = 20.0,
        limit_s: float = 60.0,
        wait: Callable[[float], None] = lambda _seconds: None,
        **plan: Any,
    ) -> None:
        self.said: list[str] = []
        self.waits: list[float] = []

        def noted(seconds: float) -> None:
            self.waits.append(seconds)
            wait(seconds)

        means = Means(limit_s, stall_s, wait=noted, say=self.said.append)
        given = {"HOME": str(folder), "HF_HUB_CACHE": str(folder / "hub"), "HF_ENDPOINT": url}
        asked = plan_for(**{"model": REPOSITORY} | plan)
        self.facts: CacheFacts = resolve_model(
            asked, given | dict(environ or {}), token=token, means=means
        )
        self.findings = findings(CHECKS, self.facts, asked)

    @property
    def first(self) -> Finding:
        """What the first check that blocks says."""
        return next(found for found in self.findings.values() if found.status.blocks)

    @property
    def code(self) -> ExitCode | None:
        """The exit code of that check, None where none blocks."""
        for check in CHECKS:
            found = self.findings[check.id]
            if found.status.blocks:
                return exit_code(found.fault or check.fault)
        return None


def refused(hub: Hub) -> Cause:
    """What the downloading child says of this hub, asked in this process: a tenth of the time."""
    close_session()  # the client keeps its connections, to hubs of other tests too
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "*")
        patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)  # as in the child
        api = HfApi(endpoint=hub.url, token=TOKEN)
        with pytest.raises((httpx.HTTPError, OSError, ValueError, CauseError)) as caught:
            commit_of(api, REPOSITORY, None, timeout_s=5)
        close_session()
    return cause_of(caught.value)
