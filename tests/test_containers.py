"""Facts about boots in containers: stopped, and killed in part or as a whole.

Each is shown on a real Docker engine, with the boot as the container's first process, and below
an init (`docker run --init`, and tini as the image's entry point). `tests/containers/__init__.py`
says what that needs; elsewhere these tests are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.containers import boot_and_look, jobs
from tests.containers.engine import silent_hub, unavailable
from tests.containers.harness import (
    ENTRIES,
    Container,
    Given,
    running,
    started_stages,
)
from tests.containers.moments import MOMENTS, agrees, is_valid

pytestmark = [
    pytest.mark.stack,
    pytest.mark.slow,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable()),
]

GRACE_S = 5.0  # BOOT_GRACE_S as it is by default
# What two busy cores and the engine may add to it. The sum stays below the ten seconds after which
# `docker stop` kills, which would show as 137 besides.
SLACK_S = 4.0

every_entry = pytest.mark.parametrize("entry", list(ENTRIES))
below_an_init = pytest.mark.parametrize("entry", [name for name in ENTRIES if name != "pid1"])


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    with silent_hub() as network:
        yield network


def boot(
    folder: Path, hub: str, moment: str, entry: str, *, shell: str = "", **more: str
) -> AbstractContextManager[Container]:
    """A boot that can be brought to a moment."""
    settings = {**MOMENTS[moment].settings, **more}
    return running(folder / "reports", Given(settings, entry, shell=shell, network=hub))


@every_entry
@pytest.mark.parametrize("moment", list(MOMENTS))
def test_docker_stop_ends_a_boot_within_its_grace(
    tmp_path: Path, hub: str, moment: str, entry: str
) -> None:
    with boot(tmp_path, hub, moment, entry) as container:
        MOMENTS[moment].arrive(container)
        took = container.stop()
        end = container.end()
    agrees(end, 143, "interrupted")
    assert took < GRACE_S + SLACK_S
    assert started_stages(end.report)[-1] in MOMENTS[moment].stages
    assert "SIGTERM" in end.report["exit"]["reason"]


@every_entry
def test_a_term_is_not_lost_while_the_boot_itself_is_imported(
    tmp_path: Path, hub: str, entry: str
) -> None:
    """The kernel drops what the first process of a container neither handles nor blocks."""
    settings = {boot_and_look.SLOWLY: "5"}
    with boot(tmp_path, hub, "importing", entry, **settings) as container:
        container.until_file(boot_and_look.IMPORTING)
        container.kill("TERM")
        end = container.end()
    agrees(end, 143, "interrupted")


@every_entry
def test_an_int_is_told_from_a_term(tmp_path: Path, hub: str, entry: str) -> None:
    with boot(tmp_path, hub, "numerics", entry) as container:
        container.until_stage("numerics")
        container.kill("INT")
        end = container.end()
    agrees(end, 130, "interrupted")


@every_entry
def test_a_second_term_is_immediate(tmp_path: Path, hub: str, entry: str) -> None:
    """A stopped writer takes no report, so that the last write uses up all the time it has."""
    with boot(tmp_path, hub, "numerics", entry, BOOT_GRACE_S="100") as container:
        container.until_stage("numerics")
        container.kill_inside(container.writer(), "STOP")
        container.kill("TERM")
        time.sleep(2.0)
        assert container.is_running()
        began = time.monotonic()
        container.kill("TERM")
        end = container.end()
        assert time.monotonic() - began < 6.0
    assert (end.code, end.out) == (143, "")
    is_valid(end.report)
    assert started_stages(end.report)[-1] == "numerics"


@every_entry
def test_a_job_has_the_time_that_the_orchestrator_gives(
    tmp_path: Path, hub: str, entry: str
) -> None:
    settings = {"BOOT_JOB": "tests.containers.jobs:saves", "BOOT_GRACE_S": "1"}
    with boot(tmp_path, hub, "job", entry, **settings) as container:
        container.until_file(jobs.READY)
        container.stop()
        end = container.end()
        assert (container.folder / jobs.SAVED).exists()
    assert end.code == jobs.SAVED_CODE
    assert end.report["job"]["signals"] == ["SIGTERM"]
    assert end.report["job"]["code"] == end.report["exit"]["process_code"] == jobs.SAVED_CODE
    assert end.left == []


@every_entry
@pytest.mark.parametrize("moment", ["importing", "numerics", "job"])
def test_a_killed_worker_is_a_finding(tmp_path: Path, hub: str, moment: str, entry: str) -> None:
    with boot(tmp_path, hub, moment, entry) as container:
        MOMENTS[moment].arrive(container)
        container.kill_inside(container.worker())
        end = container.end()
    agrees(end, 70)
    (stage,) = MOMENTS[moment].stages
    assert end.statuses[stage] == "error"
    assert (end.report["crash"]["where"], end.report["crash"]["signal"]) == (stage, "SIGKILL")
    if stage == "job":
        assert end.report["job"]["duration_s"] > 0
        assert end.report["job"]["code"] == 70


@every_entry
def test_a_killed_preflight_is_a_finding(tmp_path: Path, hub: str, entry: str) -> None:
    with boot(tmp_path, hub, "preflight", entry) as container:
        container.until_stage("cache")
        container.kill_inside(container.preflight())
        end = container.end()
    agrees(end, 70)
    assert end.statuses["cache"] == "error"
    assert (end.report["crash"]["where"], end.report["crash"]["signal"]) == ("cache", "SIGKILL")


@every_entry
def test_a_killed_writer_is_replaced(tmp_path: Path, hub: str, entry: str) -> None:
    with boot(tmp_path, hub, "importing", entry) as container:
        container.until_stage("stack")
        container.kill_inside(container.writer())
        end = container.end()
    agrees(end, 0)


@below_an_init
@pytest.mark.parametrize("moment", ["preflight", "importing", "numerics", "job"])
def test_all_of_a_boot_dies_with_its_supervisor(
    tmp_path: Path, hub: str, moment: str, entry: str
) -> None:
    """A shell above it keeps the container, whose end would else take everything along."""
    at = MOMENTS[moment]
    shell = '"$@"; code=$?; sleep 60; exit $code'
    with boot(tmp_path, hub, moment, entry, shell=shell) as container:
        at.arrive(container)
        assert len(container.of_the_boot()) > 1
        container.kill_inside(container.supervisor())
        began = time.monotonic()
        container.until(lambda: not container.of_the_boot(), "the end of all")
        assert time.monotonic() - began < 20.0
        assert container.is_running()
        left = container.report()
    is_valid(left)
    assert (left["state"], left["verdict"], left["exit"]) == ("in_progress", None, None)
    assert started_stages(left)[-1] in at.stages


@every_entry
def test_a_killed_boot_leaves_the_stage_it_was_in(tmp_path: Path, hub: str, entry: str) -> None:
    with boot(tmp_path, hub, "numerics", entry) as container:
        container.until_stage("numerics")
        if entry == "pid1":
            container.kill("KILL")
        else:
            container.kill_inside(container.supervisor())
        end = container.end()
    assert (end.code, end.out) == (137, "")
    is_valid(end.report)
    assert end.report["state"] == "in_progress"
    assert started_stages(end.report)[-1] == "numerics"
