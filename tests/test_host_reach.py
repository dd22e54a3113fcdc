"""Where the model lies decides what a bad way to the hub, or a cache that is only read, can do."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.checks.host import CHECKS
from app.facts.host import Folder, FolderFacts, HostFacts, ModelAt
from app.facts.node import ClockFacts
from app.outcome import Finding, Status
from app.plan import Plan
from app.probes.host import probe_host
from app.probes.names import read_tables, unsloth_models_folder
from app.probes.reach import locate_model
from app.probes.surroundings import probe_surroundings
from app.profiles import GIB
from tests.fakes_preflight import findings, model_files, plan_for, write_model
from tests.test_host_node import GOOD, NODE

REPOSITORY = Path(__file__).resolve().parents[1]
COMMIT = "0123456789" * 4
HUB = plan_for("h100", model="org/model")
CLOSED = plan_for("h100", model="org/model", download="never")
BAD_WAY = {"HTTPS_PROXY": "ftp://p:1", "SSL_CERT_FILE": "/no/such.pem"}


def cached(folder: Path, name: str = "org/model", *, lacking: str = "") -> Path:
    """A hub's cache with one snapshot of `main`."""
    base = folder / ("models--" + name.replace("/", "--"))
    write_model(base / "snapshots" / COMMIT, model_files())
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text(COMMIT)
    if lacking:
        (base / "snapshots" / COMMIT / lacking).unlink()
    return folder


def judged(facts: HostFacts, plan: Plan = HUB) -> dict[str, Finding]:
    return findings(CHECKS, facts, plan)


def hub_folder(number: int | None = None, free: int = 100 * GIB) -> FolderFacts:
    problem = os.strerror(number) if number else ""
    return FolderFacts(Folder("hub", "/h", "HF_HOME"), problem, number, free_bytes=free, device=1)


@pytest.mark.parametrize(
    ("at", "status"),
    [
        (ModelAt.UNTOLD, Status.FAIL),
        (ModelAt.HUB, Status.FAIL),
        (ModelAt.CACHE, Status.WARN),
        (ModelAt.FOLDER, Status.WARN),
    ],
)
def test_a_bad_way_to_the_hub_fails_only_where_it_will_be_used(at: ModelAt, status: Status) -> None:
    late = ClockFacts(1e9, 1.1e9, "a file")
    facts = replace(NODE, surroundings=probe_surroundings(BAD_WAY), clock=late, model_at=at)
    said = judged(facts)
    for check in ("proxies", "ca_files", "clock"):
        assert said[f"host.{check}"].status is status, check


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_whole_model_in_a_cache_that_is_only_read_passes(number: int) -> None:
    facts = replace(NODE, caches=(hub_folder(number), GOOD), model_at=ModelAt.CACHE)
    found = judged(facts)["host.caches_writable"]
    assert found.status is Status.PASS
    assert "only read" in found.reason
    assert (
        judged(replace(facts, model_at=ModelAt.HUB))["host.caches_writable"].status is Status.FAIL
    )


def test_the_cache_stage_says_what_a_closed_boot_lacks_in_a_cache_that_is_only_read() -> None:
    facts = replace(NODE, caches=(hub_folder(errno.EROFS), GOOD), model_at=ModelAt.HUB)
    assert judged(facts, CLOSED)["host.caches_writable"].status is Status.PASS


def test_beside_a_model_in_a_folder_a_mount_that_is_read_only_passes_and_lacking_rights_fail() -> (
    None
):
    said = {
        number: judged(replace(NODE, caches=(hub_folder(number), GOOD), model_at=ModelAt.FOLDER))[
            "host.caches_writable"
        ].status
        for number in (errno.EROFS, errno.EACCES)
    }
    assert said == {errno.EROFS: Status.PASS, errno.EACCES: Status.FAIL}


def test_another_cache_that_cannot_be_written_fails_beside_a_whole_model() -> None:
    other = replace(hub_folder(errno.EROFS), folder=Folder("code", "/c", "TRITON_CACHE_DIR"))
    facts = replace(NODE, caches=(hub_folder(errno.EROFS), other), model_at=ModelAt.CACHE)
    found = judged(facts)["host.caches_writable"]
    assert found.status is Status.FAIL
    assert found.reason.startswith("code")
    assert "HF_HOME" not in found.next_step.partition("(")[0]


def test_a_full_disk_fails_also_beside_a_whole_model() -> None:
    facts = replace(NODE, caches=(hub_folder(errno.ENOSPC), GOOD), model_at=ModelAt.CACHE)
    assert judged(facts)["host.caches_writable"].status is Status.FAIL


def test_no_room_is_asked_of_a_cache_to_which_nothing_is_written() -> None:
    """A volume that is only read mostly reports no free room and no free inodes."""
    full = replace(hub_folder(errno.EROFS, free=0), free_inodes=0)
    code = replace(hub_folder(), folder=Folder("code", "/c", "TRITON_CACHE_DIR"), device=2)
    facts = replace(NODE, caches=(full, code), model_at=ModelAt.CACHE)
    assert judged(facts)["host.disk"].status is Status.PASS
    writable = replace(full, problem="", errno=None)
    for at, status in ((ModelAt.CACHE, Status.PASS), (ModelAt.HUB, Status.WARN)):
        facts = replace(NODE, caches=(writable, code), model_at=at)
        assert judged(facts)["host.disk"].status is status


def test_the_model_is_looked_for_as_the_cache_stage_does(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "HF_HUB_CACHE": str(cached(tmp_path / "hub"))}
    assert locate_model(HUB, environ) is ModelAt.CACHE
    assert locate_model(replace(HUB, revision=COMMIT), environ) is ModelAt.CACHE
    assert locate_model(replace(HUB, revision="v2"), environ) is ModelAt.HUB
    assert locate_model(plan_for(model="org/other"), environ) is ModelAt.HUB
    assert locate_model(plan_for(model=str(tmp_path)), environ) is ModelAt.FOLDER
    assert locate_model(plan_for(model="$HOME"), environ) is ModelAt.FOLDER
    assert locate_model(plan_for(), environ) is ModelAt.UNTOLD
    assert locate_model(plan_for(model="a\0b"), environ) is ModelAt.HUB


def test_a_snapshot_that_lacks_a_file_is_not_whole(tmp_path: Path) -> None:
    cache = cached(tmp_path / "hub", lacking="config.json")
    assert locate_model(HUB, {"HF_HUB_CACHE": str(cache)}) is ModelAt.HUB


def test_unsloths_own_name_for_the_model_is_looked_for(tmp_path: Path) -> None:
    """The name that was asked for is not what a GPU boot loads."""
    asked = "unsloth/gemma-3n-E2B-it"
    four_bit = read_tables(unsloth_models_folder()).resolve(asked, load_in_4bit=True)
    environ = {"HF_HUB_CACHE": str(cached(tmp_path / "hub", four_bit))}
    assert locate_model(plan_for("h100", model=asked), environ) is ModelAt.CACHE
    assert locate_model(plan_for("cpu", model=asked), environ) is ModelAt.HUB


def test_it_is_looked_for_only_where_that_matters(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    environ["HF_HUB_CACHE"] = str(cached(tmp_path / "hub"))
    plan = plan_for(model="org/model", report_dir=tmp_path / "reports")
    doubtful = probe_host(plan, environ | BAD_WAY)
    assert (doubtful.hub_doubtful, doubtful.model_at) == (True, ModelAt.CACHE)
    hub = replace(doubtful.hub, free_bytes=100 * GIB)
    good = replace(
        doubtful, caches=(hub, *doubtful.caches[1:]), surroundings=probe_surroundings({})
    )
    assert not good.hub_doubtful


JUDGE = """
import json, sys
from pathlib import Path
from app.checks.host import CHECKS
from app.probes.host import probe_host
from tests.fakes_preflight import plan_for

hub, home, model = sys.argv[1:]
plan = plan_for(model=model, report_dir=Path(home, "reports"))
facts = probe_host(plan, {"HOME": home, "TMPDIR": home, "HF_HUB_CACHE": hub})
print(json.dumps({check.id: check.judge(facts, plan).status for check in CHECKS}))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_real_mount_that_is_read_only_serves_a_whole_model_and_no_other(tmp_path: Path) -> None:
    cache = cached(tmp_path / "hub")
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    said = {}
    for model in ("org/model", "org/other"):
        ours = [sys.executable, "-c", JUDGE, str(cache), str(tmp_path / "home"), model]
        done = subprocess.run(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", cache, *ours],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            check=False,
        )
        if done.returncode and "ermission" in done.stderr:
            pytest.skip("mounting is not allowed here")
        said[model] = json.loads(done.stdout)["host.caches_writable"]
    assert said == {"org/model": "pass", "org/other": "fail"}
