"""How deaths are judged: real processes that really die, and the kernel's counts around them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.deaths import crash_of, judge
from app.exits import exit_code
from app.facts.process import Death, OomFacts
from app.outcome import Fault
from app.traces import arranged, innermost

MIB = 1 << 20
FULL = OomFacts(0, 0, 60 * MIB, 64 * MIB, "/sys/fs/cgroup/memory.max")
SEEN = (
    "FATAL",
    "Traceback (most recent call last):",
    "  File x",
    "ValueError: no such thing",
    "bye",
)


def died(code: str, *, arguments: tuple[str, ...] = (), on_device: bool = False) -> Death:
    """Run code that dies, its crash trace in a memfd, as the worker's is."""
    trace = os.memfd_create("trace")
    try:
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + code, str(trace), *arguments],
            pass_fds=(trace,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        os.lseek(trace, 0, os.SEEK_SET)
        text = os.read(trace, 1 << 20).decode()
    finally:
        os.close(trace)
    number = done.returncode
    return Death(
        who="worker",
        signal=-number if number < 0 else None,
        exit_code=number if number >= 0 else None,
        on_device=on_device,
        trace=tuple(text.splitlines()),
        output=tuple(done.stdout.splitlines()),
    )


PRELUDE = """
import ctypes, faulthandler, os, resource, signal, sys, threading, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.enable(file=int(sys.argv[1]), all_threads=True)
"""


def test_a_segmentation_fault_is_told_with_its_place() -> None:
    """A second thread is alive, and is not the one that crashed."""
    death = died(
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "def inner():\n    ctypes.string_at(0)\n"
        "inner()"
    )
    assert death.signal == signal.SIGSEGV
    found = judge(death)
    assert found.fault is Fault.INTERNAL
    assert "SIGSEGV in" in found.reason
    assert "ctypes/__init__.py" in found.reason
    assert found.reason.endswith(" string_at")
    crash = crash_of(death, "numerics")
    assert (crash.where, crash.kind, crash.signal) == ("numerics", "signal", "SIGSEGV")
    assert crash.traceback[0] == "Fatal Python error: Segmentation fault"
    assert crash.traceback[1].startswith("Current thread ")
    assert crash.traceback[3].endswith("in inner")
    assert [line for line in crash.traceback if line.startswith("Thread ")]


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE", "SIGSYS", "SIGTRAP", "SIGKILL"])
def test_a_crash_is_the_nodes_with_the_device_in_use_and_ours_without(name: str) -> None:
    number = signal.Signals[name]
    death = died(f"os.kill(os.getpid(), {int(number)})")
    assert death.signal == number
    assert judge(death).fault is Fault.INTERNAL
    found = judge(replace(death, on_device=True))
    assert found.fault is Fault.NODE_UNFIT
    assert exit_code(found.fault) == 69
    assert name in found.reason


def test_an_unknown_instruction_is_the_nodes_processor() -> None:
    """Whether a device is in use or not: no code of that node will run."""
    number = int(signal.SIGILL)
    death = died(f"os.kill(os.getpid(), {number})")
    for each in (death, replace(death, on_device=True)):
        found = judge(each)
        assert (death.signal, found.fault) == (number, Fault.NODE_UNFIT)
        assert "processor" in found.reason
        assert "newer processor" in found.next_step


def test_an_abort_of_the_allocator_is_lack_of_memory() -> None:
    """The C++ run time's own words, by a real throw out of libstdc++."""
    code = (
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))\n"
        "new = ctypes.PyDLL('libstdc++.so.6')._Znwm\n"  # operator new(unsigned long)
        "new(ctypes.c_size_t(1 << 40))"
    )
    death = died(code, on_device=True)
    assert death.signal == signal.SIGABRT
    assert "std::bad_alloc" in "\n".join(death.output)
    found = judge(death)
    assert found.fault is Fault.HARDWARE_MISMATCH
    assert "out of host memory" in found.reason


def test_a_mapped_file_that_became_shorter_is_a_read_error(tmp_path: Path) -> None:
    """What a failing disk does to a mapped page, too: the kernel has none to give."""
    code = (
        "import mmap\n"
        "file = open(sys.argv[2], 'w+b'); file.truncate(1 << 20)\n"
        "pages = mmap.mmap(file.fileno(), 0)\n"
        "os.truncate(sys.argv[2], 0)\n"
        "pages[1 << 19]"
    )
    death = died(code, arguments=(str(tmp_path / "weights"),))
    assert death.signal == signal.SIGBUS
    assert judge(death).fault is Fault.READ_ERROR
    assert judge(replace(death, on_device=True)).fault is Fault.NODE_UNFIT


def test_weights_that_vanish_under_safetensors_are_a_read_error_on_a_device_too(
    tmp_path: Path,
) -> None:
    """The thread was in a reader of files, so it was no register of the device."""
    code = (
        "import numpy as np; from safetensors.numpy import load_file, save_file\n"
        "save_file({'w': np.ones(1 << 22)}, sys.argv[2])\n"
        "import safetensors.numpy as reader\n"
        "opened = reader.safe_open\n"
        "def cut(*a, **k):\n    f = opened(*a, **k); os.truncate(sys.argv[2], 4096); return f\n"
        "reader.safe_open = cut\n"
        "load_file(sys.argv[2])"
    )
    death = died(code, arguments=(str(tmp_path / "w.safetensors"),), on_device=True)
    assert death.signal == signal.SIGBUS
    assert "safetensors/numpy.py" in innermost(death.trace)
    assert judge(death).fault is Fault.READ_ERROR


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_that_somebody_sent_is_temporary(name: str) -> None:
    code = f"signal.signal({int(signal.Signals[name])}, signal.SIG_DFL)\n"
    death = died(code + f"os.kill(os.getpid(), {int(signal.Signals[name])})", on_device=True)
    found = judge(death)
    assert found.fault is Fault.TEMPORARY
    assert f"sent {name} to the worker alone" in found.reason


def killed(before: OomFacts, after: OomFacts, *, on_device: bool = True, rss: int = 0) -> Death:
    return Death(
        who="worker",
        signal=signal.SIGKILL,
        on_device=on_device,
        before=before,
        after=after,
        rss_peak_bytes=rss,
    )


def test_a_kill_that_the_group_counted_is_lack_of_memory() -> None:
    found = judge(killed(FULL, replace(FULL, kills=1, peak_bytes=64 * MIB)))
    assert found.fault is Fault.HARDWARE_MISMATCH
    assert exit_code(found.fault) == 79
    assert "was killed by the kernel for lack of memory: peak" in found.reason
    assert "raise the memory limit" in found.next_step
    assert found.source.startswith("/sys/fs/cgroup/memory.max")
    assert "1 in our group" in found.actual


def test_a_kill_far_below_the_limit_is_the_machines_lack_of_memory() -> None:
    """A group counts its killed processes whatever the kernel killed them for."""
    before = replace(FULL, limit_bytes=1 << 40)
    found = judge(killed(before, replace(before, kills=1, machine_kills=1)))
    assert found.fault is Fault.HARDWARE_MISMATCH
    assert "take a node with more free memory" in found.next_step


@pytest.mark.parametrize(
    ("facts", "rss", "words"),
    [
        (replace(FULL, kills=None, peak_bytes=63 * MIB), 0, "was probably killed by the kernel"),
        (replace(FULL, kills=None, peak_bytes=None), 63 * MIB, "was probably killed"),
        (replace(FULL, kills=None, peak_bytes=None), 0, "was possibly killed by the kernel"),
        (OomFacts(None, 0), 5 * MIB, "was possibly killed by the kernel"),
    ],
)
def test_without_a_count_of_the_group_the_machines_is_told_with_doubt(
    facts: OomFacts, rss: int, words: str
) -> None:
    found = judge(killed(facts, replace(facts, machine_kills=1), rss=rss))
    assert found.fault is Fault.HARDWARE_MISMATCH
    assert words in found.reason


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OomFacts(), OomFacts()),  # nothing is counted
        (FULL, FULL),  # nobody was killed for memory
        (replace(FULL, kills=3), replace(FULL, kills=3)),  # by then, others had been
        (FULL, replace(FULL, machine_kills=1)),  # somebody was, and not in our group
        # the group keeps no count, and was far from its limit
        (
            replace(FULL, kills=None, peak_bytes=9 * MIB),
            replace(FULL, kills=None, peak_bytes=9 * MIB, machine_kills=1),
        ),
    ],
)
def test_a_kill_without_evidence_came_from_outside(before: OomFacts, after: OomFacts) -> None:
    found = judge(killed(before, after))
    assert found.fault is Fault.NODE_UNFIT
    assert "was killed from outside (SIGKILL)" in found.reason
    assert "in our group" in found.actual
    assert judge(killed(before, after, on_device=False)).fault is Fault.INTERNAL


@pytest.mark.parametrize(
    ("code", "fault", "words"),
    [
        (0, Fault.INTERNAL, "without a verdict: exit 0: ValueError: no such thing"),
        (1, Fault.INTERNAL, "without a verdict: exit 1: ValueError: no such thing"),
        (128 + 9, Fault.NODE_UNFIT, "exit 137, as shells say SIGKILL"),
        (128 + 11, Fault.NODE_UNFIT, "exit 139, as shells say SIGSEGV"),
        (128 + 15, Fault.TEMPORARY, "sent SIGTERM"),
        (255, Fault.INTERNAL, "exit 255"),
        (128, Fault.INTERNAL, "exit 128"),
    ],
)
def test_an_exit_without_a_verdict_is_ours_unless_it_tells_of_a_signal(
    code: int, fault: Fault, words: str
) -> None:
    death = Death(who="worker", exit_code=code, on_device=True, output=SEEN)
    assert judge(death).fault is fault
    assert words in judge(death).reason
    crash = crash_of(death, "load")
    assert (crash.kind, crash.signal, crash.exit_code) == ("exit", None, code)
    assert crash.output == list(SEEN)


def test_an_exit_by_a_real_exception_names_it() -> None:
    death = died("raise KeyError('x')")
    assert judge(death).reason == "the worker ended without a verdict: exit 1: KeyError: 'x'"


@pytest.mark.parametrize(
    ("raising", "fault"),
    [
        ("bytearray(1 << 60)", Fault.HARDWARE_MISMATCH),
        ("raise OSError(28, os.strerror(28))", Fault.READ_ERROR),
        ("raise OSError(28, 'some other words')", Fault.INTERNAL),
        ("open('/proc/self/mem/x')", Fault.INTERNAL),
    ],
)
def test_the_last_line_of_an_exception_has_a_class_and_a_number(raising: str, fault: Fault) -> None:
    assert judge(died(raising)).fault is fault


def test_what_is_no_event_is_ours() -> None:
    death = Death(who="preflight", protocol="no event: \x1b[31mInvalid\nJSON", on_device=True)
    found = judge(death)
    assert found.fault is Fault.INTERNAL
    assert (
        found.reason
        == "the preflight said what is no event: no event: \\u001b[31mInvalid\\u000aJSON"
    )
    assert crash_of(death, "host").kind == "protocol"


@pytest.mark.parametrize(
    "death",
    [
        Death("worker", signal=signal.SIGSEGV),
        Death("worker", signal=signal.SIGBUS),
        Death("worker", signal=signal.SIGTERM),
        Death("worker", signal=64),
        Death("worker", exit_code=3),
        Death("worker", protocol="x"),
        Death("worker", signal=signal.SIGABRT, output=("terminate: std::bad_alloc",)),
        killed(FULL, FULL),
        killed(FULL, replace(FULL, kills=1)),
    ],
    ids=str,
)
def test_every_finding_says_what_to_do(death: Death) -> None:
    found = judge(death)
    assert found.status.blocks
    for text in (found.reason, found.expected, found.actual, found.source, found.next_step):
        assert text
        assert len(text.splitlines()) == 1


def test_a_trace_is_bounded_and_holds_the_last_dump_alone() -> None:
    """Stacks that were asked for at a deadline lie in the same file, before a crash's."""
    asked = ["Current thread 0x1 (most recent call first):", '  File "/old.py", line 1 in old', ""]
    others = [
        line
        for number in range(50)
        for line in (
            f"Thread 0x{number:x} (most recent call first):",
            *(f'  File "/x.py", line {i} in f' for i in range(10)),
            "",
        )
    ]
    trace = [
        *asked,
        "Fatal Python error: Aborted",
        "",
        *others,
        "Current thread 0xff (most recent call first):",
        '  File "/a/b/c/d.py", line 7 in <module>',
        "",
        "Extension modules: " + "numpy.linalg, " * 400,
    ]
    lines = arranged(trace)
    assert len(lines) == 200
    assert lines[:3] == [trace[4 - 1], trace[-4], trace[-3]]
    assert lines[-1].startswith("Extension modules: ")
    assert len(lines[-1]) <= 500
    assert lines[-2] == "... 355 more lines"
    assert innermost(trace) == "b/c/d.py:7 <module>"


@pytest.mark.parametrize(
    "trace",
    [
        (),
        ("garbage", "\x00", 'File "x", line in'),
        ("Fatal Python error: Aborted",),
        # a thread that Python did not start has crashed: no thread is the current one
        (
            "Fatal Python error: Aborted",
            "",
            "Thread 0x1 (most recent call first):",
            '  File "a", line 1 in f',
        ),
        ("Current thread 0x1 (most recent call first):", "  <no Python frame>"),
    ],
)
def test_a_trace_without_a_frame_of_the_crash_names_none(trace: tuple[str, ...]) -> None:
    assert innermost(trace) == ""
    assert arranged(trace) == [line for line in trace if line.strip()]
    assert "SIGSEGV" in judge(Death("worker", signal=signal.SIGSEGV, trace=trace)).reason


LINES = st.one_of(
    st.text(max_size=600),
    st.sampled_from(
        [
            "Fatal Python error: Aborted",
            "Current thread 0x1 (most recent call first):",
            "Thread 0x2 (most recent call first):",
            '  File "/a/b.py", line 1 in f',
            "Extension modules: a (total: 1)",
            "",
        ]
    ),
)


@given(st.lists(LINES, max_size=400))
def test_whatever_is_in_the_trace_the_report_stays_bounded(trace: list[str]) -> None:
    """A dying process may leave anything in the file."""
    lines = arranged(trace)
    assert len(lines) <= 200
    assert all(len(line) <= 500 for line in lines)
    assert len(judge(Death("worker", signal=signal.SIGSEGV, trace=tuple(trace))).reason) < 600


def test_a_native_library_that_leaves_the_process_tells_of_the_device() -> None:
    """bitsandbytes prints what CUDA said, and calls exit(1)."""
    said = "Error an illegal memory access was encountered at line 84 in file /src/csrc/ops.cu"
    death = Death(who="worker", exit_code=1, on_device=True, output=("loading", said, ""))
    found = judge(death)
    assert found.fault is Fault.NODE_UNFIT
    assert found.reason.endswith("a call of CUDA failed: an illegal memory access was encountered")
