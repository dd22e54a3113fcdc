"""The kernel's account of memory: folders as both versions of control groups have them, and a kill.

The folders hold the text of real files: version 1 of a Linux 6.18 host, version 2 by
Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from app.deaths import judge
from app.facts.process import Death, OomFacts
from app.outcome import Fault
from app.probes.memory import oom_facts

MIB = 1 << 20
UNLIMITED_V1 = "9223372036854771712"


def a_proc(tmp_path: Path, cgroup: str, mounts: list[str], vmstat: str = "oom_kill 5\n") -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(cgroup)
    (proc / "self" / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    (proc / "vmstat").write_text(f"nr_free_pages 1\n{vmstat}oom_kill_other 9\n")
    return proc


def group_v1(folder: Path, limit: str, peak: int, kills: int | None) -> None:
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.max_usage_in_bytes").write_text(f"{peak}\n")
    line = "" if kills is None else f"oom_kill {kills}\n"
    (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\n{line}")


def group_v2(folder: Path, limit: str, peak: int | None, kills: int) -> None:
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    if peak is not None:
        (folder / "memory.peak").write_text(f"{peak}\n")
    (folder / "memory.events").write_text(
        f"low 0\nhigh 0\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n"
    )


def mount_v1(top: Path, root: str = "/") -> str:
    return f"32 25 0:28 {root} {top} rw - cgroup cgroup rw,memory"


def mount_v2(top: Path, root: str = "/") -> str:
    return f"33 25 0:29 {root} {top} rw,nosuid - cgroup2 cgroup rw"


def test_version_1_counts_in_the_own_group(tmp_path: Path) -> None:
    top = tmp_path / "memory"
    group_v1(top, UNLIMITED_V1, 900 * MIB, 7)
    group_v1(top / "job", str(64 * MIB), 64 * MIB, 2)
    proc = a_proc(tmp_path, "4:memory:/job\n3:cpu:/other\n", [mount_v1(top)])
    limited_by = str(top / "job" / "memory.limit_in_bytes")
    assert oom_facts(proc) == OomFacts(2, 5, 64 * MIB, 64 * MIB, limited_by)


def test_version_2_counts_in_the_own_group_and_peaks_where_the_limit_is(tmp_path: Path) -> None:
    """A Pod's limit lies above its container's group; the root group has none of these files."""
    top = tmp_path / "cgroup"
    group_v2(top / "pod", str(100 * MIB), 99 * MIB, 4)
    group_v2(top / "pod" / "container", "max", 50 * MIB, 1)
    proc = a_proc(tmp_path, "0::/pod/container\n", [mount_v2(top)])
    limited_by = str(top / "pod" / "memory.max")
    assert oom_facts(proc) == OomFacts(1, 5, 99 * MIB, 100 * MIB, limited_by)


def test_a_kernel_without_peak_tells_the_rest(tmp_path: Path) -> None:
    """Version 2 has the file since Linux 5.19."""
    top = tmp_path / "cgroup"
    group_v2(top / "a", str(100 * MIB), None, 1)
    facts = oom_facts(a_proc(tmp_path, "0::/a\n", [mount_v2(top)]))
    assert (facts.kills, facts.peak_bytes, facts.limit_bytes) == (1, None, 100 * MIB)


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_without_a_namespace_of_groups_is_seen(tmp_path: Path, version: int) -> None:
    """Its group is named from the host's root, and the mount shows the part below it."""
    top = tmp_path / "cgroup"
    if version == 1:
        group_v1(top, str(64 * MIB), 60 * MIB, 3)
        proc = a_proc(tmp_path, "4:memory:/docker/abc\n", [mount_v1(top, "/docker/abc")])
    else:
        group_v2(top, str(64 * MIB), 60 * MIB, 3)
        proc = a_proc(tmp_path, "0::/docker/abc\n", [mount_v2(top, "/docker/abc")])
    facts = oom_facts(proc)
    assert (facts.kills, facts.peak_bytes, facts.limit_bytes) == (3, 60 * MIB, 64 * MIB)


def test_both_versions_mounted_are_read_where_memory_is(tmp_path: Path) -> None:
    """Hybrid: version 2 is mounted, and its groups have no memory controller."""
    unified, top = tmp_path / "unified", tmp_path / "memory"
    unified.mkdir()
    (unified / "cgroup.events").write_text("populated 1\n")
    group_v1(top / "a", UNLIMITED_V1, 10 * MIB, 2)
    proc = a_proc(tmp_path, "4:memory:/a\n0::/\n", [mount_v2(unified), mount_v1(top)])
    assert oom_facts(proc) == OomFacts(2, 5, 10 * MIB, None, "")


def test_an_old_kernel_counts_nothing_in_the_group(tmp_path: Path) -> None:
    """Version 1 has the line since Linux 4.13."""
    top = tmp_path / "memory"
    group_v1(top / "a", str(64 * MIB), 64 * MIB, None)
    assert oom_facts(a_proc(tmp_path, "4:memory:/a\n", [mount_v1(top)], "")).kills is None


def test_nothing_to_read_is_nothing_known(tmp_path: Path) -> None:
    assert oom_facts(tmp_path) == OomFacts()


def test_this_machine_is_read() -> None:
    facts = oom_facts()
    assert facts.machine_kills is None or facts.machine_kills >= 0
    assert facts.peak_bytes is None or facts.peak_bytes > 0


@pytest.fixture
def limited() -> Iterator[Path]:
    """Make a real group of 64 MiB, of whichever version this machine has."""
    for top, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        folder = Path(top) / f"bootguard-{uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(64 * MIB))
            yield folder
        except OSError:
            continue
        finally:
            folder.rmdir()
        return
    pytest.skip("no memory control group can be made here: needs root and a writable one")


def test_a_real_kill_for_memory_is_counted(limited: Path) -> None:
    """Before and after are read in the group, as a supervisor in it does."""
    swap = limited / "memory.swap.max"
    if swap.exists():
        swap.write_text("0")
    code = (
        f"import os; open({str(limited / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "import dataclasses, json\n"
        "from app.probes.memory import oom_facts\n"
        "before, child = oom_facts(), os.fork()\n"
        "if child == 0:\n"
        "    open('/proc/self/oom_score_adj', 'w').write('1000')\n"
        "    held = [b'x' * (1 << 20) for _ in range(500)]\n"
        "    os._exit(0)\n"
        "_, status = os.waitpid(child, 0)\n"
        "facts = [dataclasses.asdict(each) for each in (before, oom_facts())]\n"
        "print(json.dumps([os.WTERMSIG(status), *facts]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number, *facts = json.loads(done.stdout)
    before, after = (OomFacts(**each) for each in facts)
    assert number == signal.SIGKILL
    assert (after.kills or 0) - (before.kills or 0) == 1
    assert after.limit_bytes == 64 * MIB
    assert after.peak_bytes is not None
    assert after.peak_bytes > 0.9 * after.limit_bytes
    assert after.limited_by.startswith(str(limited))
    found = judge(Death(who="worker", signal=number, on_device=True, before=before, after=after))
    assert found.fault is Fault.HARDWARE_MISMATCH
    assert found.reason == (
        "the worker was killed by the kernel for lack of memory: peak 64 MiB of limit 64 MiB"
    )
