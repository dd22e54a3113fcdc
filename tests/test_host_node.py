"""The node as the host stage judges it: machine, clock, memory, limits, shared memory, groups."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from app.checks.host import CHECKS
from app.facts.host import Folder, FolderFacts, HostFacts, MemoryFacts
from app.facts.node import (
    LEVELS,
    AccountFacts,
    ClockFacts,
    LimitFacts,
    MachineFacts,
    SharedMemoryFacts,
)
from app.node_section import node_section
from app.outcome import Fault, Finding, Status
from app.plan import Plan
from app.probes.limits import probe_limits
from app.probes.memory import probe_memory
from app.probes.node import account_facts, clock_facts, machine_facts
from app.probes.shared_memory import probe_shared_memory
from app.profiles import GIB
from tests.fakes_preflight import findings, plan_for

ROOT = os.getuid() == 0
MIB = 2**20
GOOD = FolderFacts(Folder("cache", "/x", "X"), free_bytes=100 * GIB, total_bytes=200 * GIB)
NODE = HostFacts(
    account=AccountFacts(1000, 1000, "someone", "/home/someone"),
    limits=LimitFacts(8),
    clock=ClockFacts(1.1e9, 1e9, "a file"),
    report=GOOD,
    caches=(GOOD,),
    machine=MachineFacts("x86_64", "6.1.0-18-amd64", "2.36"),
    memory=MemoryFacts(64 * GIB, 60 * GIB),
    shared_memory=SharedMemoryFacts(total_bytes=32 * GIB, free_bytes=32 * GIB),
)
HUB = plan_for("h100", model="org/model")


def of(check: str, facts: HostFacts, plan: Plan = HUB) -> Finding:
    return findings(CHECKS, facts, plan)[f"host.{check}"]


def fault(check: str) -> Fault:
    return next(each.fault for each in CHECKS if each.id == f"host.{check}")


def test_an_ordinary_node_passes() -> None:
    for check in ("machine", "kernel", "clock", "account", "memory", "cpus", "limits"):
        assert of(check, NODE).status is Status.PASS
    assert of("shared_memory", NODE).status is Status.PASS


@pytest.mark.parametrize(
    ("flags", "gpu", "cpu"),
    [
        (set(), Status.FAIL, Status.FAIL),  # QEMU's default, qemu64
        (LEVELS[0], Status.PASS, Status.FAIL),  # Nehalem
        (LEVELS[0] | {"avx", "xsave"}, Status.PASS, Status.PASS),  # Sandy Bridge
        (LEVELS[0] | LEVELS[1], Status.PASS, Status.PASS),
        (LEVELS[0] - {"sse4_2"} | {"avx"}, Status.FAIL, Status.FAIL),
        (None, Status.SKIP, Status.SKIP),
    ],
)
def test_a_processor_without_the_wheels_instructions_is_named(
    flags: frozenset[str] | None, gpu: Status, cpu: Status
) -> None:
    facts = replace(NODE, machine=replace(NODE.machine, processor="a CPU", flags=flags))
    assert fault("processor") is Fault.HARDWARE_MISMATCH
    for hardware, status in (("v100", gpu), ("cpu", cpu)):
        found = of("processor", facts, plan_for(hardware))
        assert found.status is status
        if status is Status.FAIL:
            assert "a CPU has no " in found.reason
    arm = replace(facts, machine=replace(facts.machine, machine="aarch64"))
    assert of("processor", arm).status is Status.SKIP


def test_a_level_of_x86_64_is_whole() -> None:
    levels = [frozenset().union(*LEVELS[:n]) for n in range(len(LEVELS) + 1)]
    assert [MachineFacts(flags=each).x86_64_level for each in levels] == [1, 2, 3, 4]
    assert MachineFacts(flags=levels[3] - {"fma"}).x86_64_level == 2
    assert MachineFacts().x86_64_level is None


def test_the_processor_is_that_of_the_kernels_account(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: A CPU: fast\nflags\t\t: fpu sse4_2 avx\n\n"
        "processor\t: 1\nmodel name\t: Another\nflags\t\t: fpu\n\n"
    )
    found = machine_facts(tmp_path, {}, tmp_path)
    assert found.processor == "A CPU: fast"
    assert found.flags == frozenset(("sse4_2", "avx"))
    real = machine_facts(Path("/proc"), {})
    assert real.flags is not None or real.machine != "x86_64"


@pytest.mark.parametrize(
    ("umask", "uid", "status"),
    [
        (0o022, 1000, Status.PASS),
        (0o077, 1000, Status.PASS),
        (0o777, 1000, Status.FAIL),
        (0o277, 1000, Status.FAIL),
        (0o777, 0, Status.WARN),
        (None, 1000, Status.PASS),
    ],
)
def test_a_umask_that_takes_the_owners_rights_is_named(
    umask: int | None, uid: int, status: Status
) -> None:
    facts = replace(
        NODE, account=replace(NODE.account, uid=uid), machine=replace(NODE.machine, umask=umask)
    )
    found = of("account", facts)
    assert found.status is status
    if status is not Status.PASS:
        assert f"umask {umask:03o}" in found.reason
        assert "umask 022" in found.next_step


def test_an_arm_machine_is_refused_by_name_where_a_gpu_is_asked_for() -> None:
    arm = replace(NODE, machine=replace(NODE.machine, machine="aarch64"))
    found = of("machine", arm)
    assert (found.status, fault("machine")) == (Status.FAIL, Fault.HARDWARE_MISMATCH)
    assert "aarch64" in found.reason
    assert of("machine", arm, plan_for("cpu")).status is Status.WARN


@pytest.mark.parametrize(
    ("release", "status"),
    [
        ("3.10.0-1160.el7.x86_64", Status.WARN),
        ("5.4.0-150-generic", Status.WARN),
        ("5.5.0", Status.PASS),
        ("5.15.153.1-microsoft-standard-WSL2", Status.PASS),
        ("10.0", Status.PASS),
        ("odd", Status.SKIP),
        ("", Status.SKIP),
    ],
)
def test_an_old_kernel_warns(release: str, status: Status) -> None:
    facts = replace(NODE, machine=replace(NODE.machine, kernel=release))
    assert of("kernel", facts).status is status


def test_a_clock_before_the_softwares_own_time_is_the_nodes_fault() -> None:
    late = replace(NODE, clock=ClockFacts(5.0, 1e9, "/opt/bootguard/image.json"))
    found = of("clock", late)
    assert (found.status, fault("clock")) == (Status.FAIL, Fault.NODE_UNFIT)
    assert "1970-01-01T00:00:05" in found.reason
    assert "/opt/bootguard/image.json" in found.reason
    offline = plan_for("h100", model="org/model", download="never")
    assert of("clock", late, offline).status is Status.WARN
    assert of("clock", replace(NODE, clock=ClockFacts(-1e30, 1e9, "x"))).status is Status.FAIL
    assert of("clock", replace(NODE, clock=ClockFacts(4e9, 1e9, "x"))).status is Status.WARN


def test_this_machines_clock_is_after_what_is_installed_here() -> None:
    found = clock_facts()
    assert found.now > found.built > 1.7e9
    assert found.built_from


@pytest.mark.parametrize(
    ("memory", "status"),
    [
        (MemoryFacts(64 * GIB, 60 * GIB, 256 * MIB, "/a/memory.max"), Status.FAIL),
        (MemoryFacts(64 * GIB, 60 * GIB, 0, "/a/memory.max"), Status.FAIL),
        (MemoryFacts(256 * MIB, 200 * MIB), Status.FAIL),
        (MemoryFacts(64 * GIB, 600 * MIB, 4 * GIB, "/a/memory.max"), Status.WARN),
        (MemoryFacts(2 * GIB, 1500 * MIB), Status.PASS),
        (MemoryFacts(), Status.SKIP),
    ],
)
def test_memory_fails_only_where_nothing_can_boot(memory: MemoryFacts, status: Status) -> None:
    found = of("memory", replace(NODE, memory=memory))
    assert (found.status, fault("memory")) == (status, Fault.HARDWARE_MISMATCH)


def test_part_of_a_processor_warns() -> None:
    half = replace(NODE, limits=LimitFacts(8, 0.5, "/sys/fs/cgroup/cpu.max"))
    found = of("cpus", half)
    assert found.status is Status.WARN
    assert "0.50" in found.reason
    assert of("cpus", replace(NODE, limits=LimitFacts(1, 1.0))).status is Status.PASS


@pytest.mark.parametrize(
    ("limits", "gpu", "cpu"),
    [
        (LimitFacts(8, tasks_left=2, tasks_by="pids.max"), Status.FAIL, Status.FAIL),
        (LimitFacts(8, tasks_left=40, tasks_by="pids.max"), Status.WARN, Status.WARN),
        (LimitFacts(8, tasks_left=4000, tasks_by="pids.max"), Status.PASS, Status.PASS),
        (LimitFacts(8, resources=(("AS", 3 * GIB),)), Status.FAIL, Status.FAIL),
        (LimitFacts(8, resources=(("AS", 64 * GIB),)), Status.WARN, Status.PASS),
        (LimitFacts(8, resources=(("DATA", 100 * MIB),)), Status.FAIL, Status.FAIL),
        (LimitFacts(8, resources=(("NOFILE", 12),)), Status.FAIL, Status.FAIL),
        (LimitFacts(8, resources=(("NOFILE", 64),)), Status.WARN, Status.WARN),
        (LimitFacts(8, resources=(("NOFILE", 1024),)), Status.PASS, Status.PASS),
        (LimitFacts(8, resources=(("FSIZE", GIB),)), Status.WARN, Status.PASS),
        (LimitFacts(8, resources=(("CPU", 600),)), Status.WARN, Status.WARN),
        (LimitFacts(8, resources=(("CORE", 0), ("MEMLOCK", 65536))), Status.PASS, Status.PASS),
    ],
)
def test_limits_that_are_near_are_named(limits: LimitFacts, gpu: Status, cpu: Status) -> None:
    facts = replace(NODE, limits=limits)
    assert of("limits", facts).status is gpu
    assert of("limits", facts, plan_for("cpu")).status is cpu


def test_too_few_tasks_are_a_matter_of_time_and_a_ulimit_is_not() -> None:
    few = LimitFacts(8, tasks_left=2, tasks_by="pids.max")
    both = replace(few, resources=(("AS", 3 * GIB),))
    assert of("limits", replace(NODE, limits=few)).fault is Fault.TEMPORARY
    assert of("limits", replace(NODE, limits=both)).fault is None
    assert fault("limits") is Fault.CONFIG


def test_the_soft_limits_of_a_process_are_what_its_launcher_set() -> None:
    code = (
        "import resource; from pathlib import Path; from app.probes.limits import probe_limits; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99)); "
        "found = probe_limits(Path('/proc')); print(found.resource('NOFILE'), found.n_cpus)"
    )
    done = subprocess.run(
        ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["99", "1"]


GroupsT = Callable[[str, str, dict[str, str]], Path]


@pytest.fixture
def groups(tmp_path: Path) -> GroupsT:
    """Write a /proc and a tree of control groups; FS in `mounts` is the tree."""

    def make(mounts: str, own: str, files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "proc" / "self").mkdir(parents=True)
        proc = tmp_path / "proc"
        (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\nSwapFree: 8 kB\n")
        (proc / "self" / "mountinfo").write_text(mounts.replace("FS", str(tmp_path / "fs")))
        (proc / "self" / "cgroup").write_text(own)
        return proc

    return make


V2 = "31 23 0:28 / FS rw - cgroup2 cgroup2 rw\n"


def test_version_2_gives_the_tightest_quota_of_all_parents(groups: GroupsT) -> None:
    proc = groups(V2, "0::/kubepods.slice/pod/c\n", {
        "kubepods.slice/cpu.max": "max 100000\n", "kubepods.slice/pod/cpu.max": "50000 100000\n",
        "kubepods.slice/pod/c/cpu.max": "200000 100000\n", "kubepods.slice/pod/pids.max": "20\n",
        "kubepods.slice/pod/pids.current": "15\n", "kubepods.slice/pod/c/pids.max": "max\n",
        "kubepods.slice/pod/c/pids.current": "3\n",
    })  # fmt: skip
    found = probe_limits(proc)
    assert found.cpu_quota == 0.5
    assert found.quota_by.endswith("/pod/cpu.max")
    assert found.tasks_left == 5
    assert found.tasks_by.endswith("/pod/pids.max")


ULIMIT = """
import os, resource
from pathlib import Path
from app.probes.limits import probe_limits
resource.setrlimit(resource.RLIMIT_NPROC, ({most}, {most}))
os.setuid(54321)
proc = Path({proc!r})
print(probe_limits(proc).tasks_left)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account can enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(not ROOT, reason="only root can become another uid")
def test_a_limit_of_processes_is_counted_against_where_it_is_near(open_folder: Path) -> None:
    """All tasks of the machine bound those of the account from above, and are one small file."""
    proc = open_folder
    for pid, uid in ((7, 54321), (8, 0), (9, 12345)):
        (proc / str(pid)).mkdir(parents=True)
        text = f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nThreads:\t3\n"
        (proc / str(pid) / "status").write_text(text)
        os.chown(proc / str(pid), uid, uid)
    (proc / "loadavg").write_text("0.1 0.2 0.3 2/300 99\n")

    def left(most: int) -> str:
        code = ULIMIT.format(proc=str(proc), most=most)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        return done.stdout.decode().strip()

    assert left(100) == "97"
    assert left(10_000) == "9700"
    (proc / "loadavg").unlink()
    assert left(10_000) == "9997"


def test_version_1_has_a_hierarchy_for_each_controller(groups: GroupsT) -> None:
    mounts = (
        "35 31 0:30 / FS/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "36 31 0:31 / FS/pids rw - cgroup cgroup rw,pids\n"
    )
    proc = groups(mounts, "5:cpu,cpuacct:/job\n6:pids:/job\n", {
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        "pids/job/pids.max": "100\n", "pids/job/pids.current": "1\n",
    })  # fmt: skip
    found = probe_limits(proc)
    assert (found.cpu_quota, found.tasks_left) == (1.5, 99)


def test_memory_high_limits_as_well(groups: GroupsT) -> None:
    """A group above it is slowed down to a crawl, not killed."""
    proc = groups(V2, "0::/a\n", {"a/memory.max": "500000", "a/memory.high": "400000"})
    found = probe_memory(proc)
    assert (found.limit_bytes, found.swap_bytes) == (400000, 8192)
    assert found.limited_by.endswith("/a/memory.high")


def test_a_neighbours_group_is_not_taken_for_ones_own(groups: GroupsT) -> None:
    """The mount shows /docker/1, and this process is in /docker/12."""
    mounts = "31 23 0:28 /docker/1 FS rw - cgroup2 cgroup2 rw\n"
    proc = groups(mounts, "0::/docker/12/x\n", {"2/x/memory.max": "5", "memory.max": "max"})
    assert probe_memory(proc).limit_bytes is None


def test_a_mount_point_with_blanks_is_found(tmp_path: Path, groups: GroupsT) -> None:
    proc = groups("31 23 0:28 / FS\\040x rw - cgroup2 cgroup2 rw\n", "0::/\n", {})
    (tmp_path / "fs x").mkdir()
    (tmp_path / "fs x" / "memory.max").write_text("4096")
    assert probe_memory(proc).limit_bytes == 4096


@pytest.fixture
def real_group() -> Iterator[Callable[[str, str, str], Path]]:
    """Make groups of version 1 with a limit in each: controller, file, value."""
    made: list[Path] = []

    def make(controller: str, file: str, value: str) -> Path:
        folder = Path("/sys/fs/cgroup") / controller / f"bootguard-{uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            pytest.skip("no group of version 1 can be made here")
        made.append(folder)
        (folder / file).write_text(value)
        return folder

    yield make
    for folder in made:
        folder.rmdir()


def test_real_groups_are_read_by_a_process_in_them(
    real_group: Callable[[str, str, str], Path],
) -> None:
    folders = [
        real_group("cpu", "cpu.cfs_quota_us", "50000"),
        real_group("pids", "pids.max", "33"),
        real_group("memory", "memory.limit_in_bytes", str(300 * MIB)),
    ]
    procs = [str(folder / "cgroup.procs") for folder in folders]
    code = (
        f"import os\nfor file in {procs!r}: open(file, 'w').write(str(os.getpid()))\n"
        "from pathlib import Path\nfrom app.probes.limits import probe_limits\n"
        "from app.probes.memory import probe_memory\n"
        "found = probe_limits(Path('/proc'))\n"
        "print(found.cpu_quota, found.tasks_left, probe_memory(Path('/proc')).limit_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.5", "32", str(300 * MIB)]


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (SharedMemoryFacts(problem="no", errno=errno.EROFS), "cannot be used"),
        (SharedMemoryFacts(total_bytes=64 * MIB, free_bytes=64 * MIB), "has only 64 MiB"),
        (SharedMemoryFacts(total_bytes=8 * GIB, free_bytes=MIB), "nearly full"),
    ],
)
def test_shared_memory_warns_and_never_fails(facts: SharedMemoryFacts, word: str) -> None:
    found = of("shared_memory", replace(NODE, shared_memory=facts))
    assert found.status is Status.WARN
    assert word in found.reason
    assert "--shm-size" in found.next_step


def test_shared_memory_is_really_allocated_and_given_back(tmp_path: Path) -> None:
    found = probe_shared_memory(tmp_path, most=MIB)
    assert (found.problem, found.tried_bytes) == ("", MIB)
    assert not list(tmp_path.iterdir())
    assert probe_shared_memory(tmp_path / "none").errno == errno.ENOENT


def test_a_refused_allocation_is_told(tmp_path: Path) -> None:
    """By a limit of file sizes, which binds root too."""
    code = (
        "import resource, signal; from pathlib import Path; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "from app.probes.shared_memory import probe_shared_memory; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)); "
        f"print(probe_shared_memory(Path({str(tmp_path)!r})).errno)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == errno.EFBIG
    assert not list(tmp_path.iterdir())


def test_no_more_is_tried_than_a_file_may_have(tmp_path: Path) -> None:
    """A limit of file sizes is no fault of shared memory, and has a check of its own."""
    code = (
        "import resource; from pathlib import Path; "
        "from app.probes.shared_memory import probe_shared_memory; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)); "
        f"found = probe_shared_memory(Path({str(tmp_path)!r})); "
        "print(repr(found.problem), found.tried_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "'' 8192"


def test_the_confinement_is_read_from_marks(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "status").write_text("Umask:\t0027\nNoNewPrivs:\t1\nSeccomp:\t2\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".containerenv").touch()
    found = machine_facts(proc, {}, tmp_path)
    assert (found.umask, found.no_new_privileges, found.seccomp) == (0o27, True, 2)
    assert found.container == "podman"
    (tmp_path / ".dockerenv").touch()
    assert machine_facts(proc, {}, tmp_path).container == "docker"
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert machine_facts(proc, pod, tmp_path).container == "kubernetes"
    bare = machine_facts(tmp_path / "none", {}, tmp_path / "none")
    assert (bare.container, bare.umask, bare.seccomp) == ("", None, None)


def test_this_account_is_named_and_a_foreign_uid_has_no_name() -> None:
    assert account_facts({"HOME": "/h"}) == AccountFacts(
        os.getuid(), os.getgid(), account_facts({}).name, "/h"
    )
    nameless = replace(NODE, account=AccountFacts(54321, 0, None, None))
    found = of("account", nameless)
    assert found.status is Status.PASS
    assert "54321, without a passwd entry" in found.reason


def test_the_report_has_what_was_seen() -> None:
    locked = replace(GOOD, file_system="nfs4", lock_errno=errno.ENOLCK)
    limits = LimitFacts(8, 2.5, "x", 7, "y", (("NOFILE", 1024), ("AS", None)))
    machine = replace(NODE.machine, umask=0o22)
    section = node_section(replace(NODE, caches=(locked,), limits=limits, machine=machine))
    assert (section.cpu_quota, section.tasks_left, section.limits) == (2.5, 7, {"NOFILE": 1024})
    assert section.umask == "0022"
    assert [folder.locks for folder in section.folders] == [True, False]
    assert [folder.on_network for folder in section.folders] == [False, True]


def test_a_limit_of_this_process_is_told_as_it_is() -> None:
    assert dict(probe_limits(Path("/proc")).resources)["NOFILE"] in (
        None,
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
