"""The GPU's use, asked by the real nvidia-ml-py of a libnvidia-ml.so.1 of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.probes import gpu_use_child
from app.probes.gpu_use import GpuUse, Use
from tests import fake_driver
from tests.fake_driver import Device, Scenario

ROOT = Path(__file__).resolve().parent.parent
GIB = 1024**3
PERIOD_S = 0.1
PATIENCE_S = 20.0  # for a process to start on a busy machine

Start = Callable[..., GpuUse]


def driver(n: int = 1, *, last: int = 0, **changes: Any) -> Scenario:
    """Device i is GPU-i and its slice MIG-i, with i + 1 GiB in use and 10 * (i + 1) % busy.

    `last`: NVML's number for the handle of the last one alone, the others are ours.
    """
    devices = [
        Device(
            "a card", 9, 0, 80 * GIB, uuid=f"GPU-{index}", mig_uuid=f"MIG-{index}",
            used=(index + 1) * GIB, reserved=0, busy=10 * (index + 1),
            errors={"nvmlDeviceGetHandleByIndex_v2": last if index == n - 1 else 0},
        )
        for index in range(n)
    ]  # fmt: skip
    return Scenario("use", tuple(devices), **changes)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a sampler over a fake NVML; it ends with the test."""
    started: list[GpuUse] = []

    def starting(scenario: Scenario | None = None, **more: str) -> GpuUse:
        environ = fake_driver.environ(scenario or driver(), tmp_path)
        started.append(GpuUse(environ | more, PERIOD_S))
        return started[-1]

    yield starting
    for each in started:
        each.end()


@contextmanager
def ended(use: GpuUse) -> Iterator[GpuUse]:
    """Leave no process behind."""
    try:
        yield use
    finally:
        use.end()


def until(found: Callable[[], object]) -> None:
    """Wait for something true."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def first(use: GpuUse) -> Use:
    """The first figures that come."""
    found: list[Use] = []

    def asked() -> bool:
        found.extend(filter(None, [use.latest()]))
        return bool(found)

    until(asked)
    return found[0]


def problem(use: GpuUse) -> str:
    """The problem, once there is one."""
    until(lambda: use.latest() or use.problem)
    return use.problem


def printing(code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GpuUse:
    """A sampler whose process runs this code instead."""
    program = tmp_path / "child.py"
    program.write_text(f"import json, os, sys, time\n{code}\n")
    monkeypatch.setattr(gpu_use_child, "__file__", str(program))
    return GpuUse({}, PERIOD_S)


def test_figures_are_sums_and_the_busiest_device(start: Start) -> None:
    found = first(start(driver(3)))
    assert (found.memory_bytes, found.busy_percent) == (6 * GIB, 30)
    assert 0 <= found.age_s < PATIENCE_S


def test_new_figures_keep_coming(start: Start) -> None:
    use = start()
    began = time.monotonic()
    asked: set[float] = set()

    def three() -> bool:
        found = use.latest()
        if found:
            asked.add(round(time.monotonic() - found.age_s - began, 2))
        return len(asked) >= 3

    until(three)
    assert use.problem == ""


@pytest.mark.parametrize(
    ("visible", "memory"),
    [
        ("GPU-1", 2 * GIB),
        ("MIG-1,GPU-2", 5 * GIB),
        ("1", 6 * GIB),  # CUDA's order, which need not be NVML's
        ("GPU-", 6 * GIB),  # shortened
        ("GPU-7", 6 * GIB),
        ("", 6 * GIB),
    ],
)
def test_visible_devices_count_where_they_are_named_in_full(
    start: Start, visible: str, memory: int
) -> None:
    found = first(start(driver(3), CUDA_VISIBLE_DEVICES=visible))
    assert found.memory_bytes == memory


def test_a_device_that_the_control_group_keeps_from_us_does_not_count(start: Start) -> None:
    found = first(start(driver(3, last=4)))
    assert (found.memory_bytes, found.busy_percent) == (3 * GIB, 20)


def test_a_lost_device_leaves_no_sum_and_is_named(start: Start) -> None:
    use = start(driver(3, last=15))
    found = first(use)
    assert (found.memory_bytes, found.busy_percent) == (None, 20)
    assert use.problem == "handle: NVMLError_GpuIsLost"


def test_a_mig_slice_has_memory_and_no_utilisation(start: Start) -> None:
    use = start(driver(), CUDA_VISIBLE_DEVICES="MIG-0")
    found = first(use)
    assert (found.memory_bytes, found.busy_percent) == (GIB, None)
    assert use.problem == "busy: NVMLError_NotSupported"


def test_an_error_without_a_name_keeps_its_number(start: Start) -> None:
    use = start(driver(errors={"nvmlDeviceGetMemoryInfo": 12345}))
    found = first(use)
    assert (found.memory_bytes, found.busy_percent) == (None, 10)
    assert use.problem == "memory: NVML error 12345"


def test_no_device_at_all_is_no_figure(start: Start) -> None:
    found = first(start(driver(0)))
    assert (found.memory_bytes, found.busy_percent) == (None, None)


@pytest.mark.parametrize(
    ("code", "more", "said"),
    [
        (9, {}, "nvmlInit: NVMLError_DriverNotLoaded"),
        (18, {}, "nvmlInit: NVMLError_LibRmVersionMismatch"),
        (0, {"LD_LIBRARY_PATH": "/nowhere"}, "nvmlInit: NVMLError_LibraryNotFound"),
    ],
)
def test_without_nvml_the_process_says_why_and_ends(
    start: Start, code: int, more: dict[str, str], said: str
) -> None:
    use = start(driver(errors={"nvmlInitWithFlags": code}), **more)
    assert problem(use) == said
    assert use.latest() is None
    assert use.pid is not None
    process = psutil.Process(use.pid)
    until(lambda: process.status() == psutil.STATUS_ZOMBIE)


def test_a_library_that_is_not_nvml_is_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").symlink_to("/lib/x86_64-linux-gnu/libm.so.6")
    use = start(LD_LIBRARY_PATH=str(tmp_path))
    assert problem(use) == "nvmlInit: NVMLError_FunctionNotFound"


def test_nvml_that_hangs_from_the_start_gives_nothing_and_is_killed(start: Start) -> None:
    use = start(driver(hang="nvmlInitWithFlags"))
    time.sleep(0.5)
    began = time.monotonic()
    assert use.latest() is None
    assert time.monotonic() - began < 1
    assert use.problem == ""
    assert use.pid is not None
    assert psutil.pid_exists(use.pid)
    use.end()
    assert not psutil.pid_exists(use.pid)


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"])
def test_nvml_that_hangs_later_gives_older_figures_and_then_none(start: Start, call: str) -> None:
    use = start(driver(hang=call, after=10))
    first(use)
    oldest = 0.0

    def nothing() -> bool:
        nonlocal oldest
        found = use.latest()
        oldest = max(oldest, found.age_s if found else 0.0)
        return found is None

    until(nothing)
    assert oldest > 4 * PERIOD_S
    assert use.pid is not None
    assert psutil.pid_exists(use.pid)


@pytest.mark.parametrize(
    ("call", "after"), [("nvmlInitWithFlags", 0), ("nvmlDeviceGetUtilizationRates", 2)]
)
def test_nvml_that_crashes_takes_its_process_alone(start: Start, call: str, after: int) -> None:
    use = start(driver(crash=call, after=after))
    until(lambda: use.latest() is None and "signal" in use.problem)
    assert use.problem == "the sampling process died of signal SIGSEGV"


def test_what_the_library_prints_does_no_harm(start: Start) -> None:
    found = first(start(driver(printed='nvml: warning\n{"at": 0}\n[[\n')))
    assert (found.memory_bytes, found.busy_percent) == (GIB, 10)


def test_the_process_leads_a_group_and_ends_with_it(start: Start) -> None:
    use = start()
    first(use)
    assert use.pid is not None
    assert os.getpgid(use.pid) == use.pid
    use.end()
    use.end()
    assert not psutil.pid_exists(use.pid)
    assert use.fileno() == -1
    use.latest()  # may still be asked
    assert use.problem == ""


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    environ = fake_driver.environ(driver(), tmp_path)
    code = (
        "import sys, time; from app.probes.gpu_use import GpuUse\n"
        f"use = GpuUse({environ!r}, {PERIOD_S})\n"
        "while not use.latest(): time.sleep(0.01)\n"
        "print(use.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        sampler = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        until(lambda: not sampler.is_running() or sampler.status() == psutil.STATUS_ZOMBIE)


def test_it_does_not_begin_when_its_parent_is_gone_already() -> None:
    command = [sys.executable, "-I", gpu_use_child.__file__, "999999999", "0.05", ""]
    ended = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=True)
    assert ended.stdout == b""


def test_a_python_without_nvidia_ml_py_is_told() -> None:
    child = gpu_use_child.__file__
    command = [sys.executable, "-I", "-S", child, str(os.getpid()), "0.05", ""]
    ended = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=True)
    assert json.loads(ended.stdout) == {"problem": "nvidia-ml-py: No module named 'pynvml'"}


def test_the_supervisors_side_loads_no_nvidia_ml_py() -> None:
    code = "import sys, app.probes.gpu_use; print('pynvml' in sys.modules, 'torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["False", "False"]


# An expression that makes a good line, for the programs below.
FIGURES = '[{"used": 5, "busy": 7, "errors": []}]'
GOOD = f"""(b'{{"at": %f, "devices": {FIGURES}}}\\n' % (time.monotonic()))"""


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b"\xff\xfe\x00",
        b"[" * 10_000,
        b"{}",
        b"null",
        b'{"problem": 5}',
        b'{"at": 1e999, "devices": []}',
        b'{"at": -1, "devices": []}',
        b'{"at": 1e15, "devices": []}',
        b'{"at": 1, "devices": [{"used": -5, "busy": 7, "errors": []}]}',
        b'{"at": 1, "devices": [{"used": 9223372036854775808, "busy": 7, "errors": []}]}',
        b'{"at": 1, "devices": [{"used": true, "busy": 7, "errors": []}]}',
        b'{"at": 1, "devices": [{"used": 5, "busy": 101, "errors": []}]}',
        b'{"at": 1, "devices": [{"used": 5, "busy": "7", "errors": []}]}',
        b'{"at": 1, "devices": [{"used": 5}]}',
        b'{"at": 1, "devices": [' + b" " * 100_000 + b"]}",
    ],
    ids=lambda line: repr(line[:60]),
)
def test_a_line_that_is_none_of_ours_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: bytes
) -> None:
    last = b'\n{"problem": "that was all"}\n'
    code = f"os.write(1, {line!r}); os.write(1, {last!r})"
    with ended(printing(code, monkeypatch, tmp_path)) as use:
        assert problem(use) == "that was all"
        assert use._line is None


def test_a_line_in_pieces_counts_when_it_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = (
        f"line = {GOOD}; os.write(1, line[:20]); time.sleep(0.3); os.write(1, line[20:])\n"
        "time.sleep(60)"
    )
    with ended(printing(code, monkeypatch, tmp_path)) as use:
        assert first(use)[:2] == (5, 7)


@pytest.mark.parametrize("piece", [b"x" * 4096, b"{}\n" * 1365, b"\n" * 4096])
def test_a_flood_is_read_in_bounded_pieces_and_what_follows_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, piece: bytes
) -> None:
    code = (
        f"for _ in range(2000): os.write(1, {piece!r})\n"
        f"os.write(1, b'\\n' + {GOOD}); time.sleep(60)"
    )
    with ended(printing(code, monkeypatch, tmp_path)) as use:
        longest = kept = 0.0

        def asked() -> Use | None:
            nonlocal longest, kept
            began = time.monotonic()
            found = use.latest()
            longest, kept = max(longest, time.monotonic() - began), max(kept, len(use._rest))
            return found

        until(asked)
        assert longest < 2
        assert kept <= 16_384


def test_an_endless_flood_keeps_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "while True: os.write(1, b'x' * 65536)"
    with ended(printing(code, monkeypatch, tmp_path)) as use:
        began = time.monotonic()
        for _ in range(20):
            assert use.latest() is None
        assert time.monotonic() - began < 10
        assert use.pid is not None
    assert not psutil.pid_exists(use.pid)


def test_old_figures_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = f"os.write(1, {GOOD.replace('monotonic()', 'monotonic() - 60')}); time.sleep(60)"
    with ended(printing(code, monkeypatch, tmp_path)) as use:
        until(lambda: use.latest() is None and use._line is not None)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit(3)", "the sampling process ended by itself (exit 3)"),
        ("os.kill(os.getpid(), 9)", "the sampling process died of signal SIGKILL"),
        ("os.close(1); time.sleep(60)", "the sampling process closed its output"),
    ],
)
def test_a_process_that_leaves_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, said: str
) -> None:
    with ended(printing(code, monkeypatch, tmp_path)) as use:
        until(lambda: use.latest() or use.problem == said)


def test_a_process_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    use = GpuUse({})
    assert "could not start" in use.problem
    assert (use.latest(), use.pid, use.fileno()) == (None, None, -1)
    use.end()
