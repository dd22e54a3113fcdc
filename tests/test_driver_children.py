"""What the processes that ask the driver may tell, and how long they are waited for."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.facts.board import BoardFacts, NvmlFacts
from app.facts.gpu import DeviceFacts
from app.plan import Plan
from app.probes import driver_child
from app.probes.driver_answers import CudaAnswer, told_by
from app.probes.driver_children import ask_driver
from app.probes.gpu import ask_until_ready, probe_gpu
from tests.boots import runs, until
from tests.fakes_preflight import plan_for

SENSELESS = "the probing process told what makes no sense"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = [*CudaAnswer.__dataclass_fields__, "device", "done"]
LINES = st.lists(
    st.binary(max_size=40)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4).map(
        lambda value: json.dumps(value).encode()
    ),
    max_size=6,
).map(b"\n".join)


@given(LINES, st.sampled_from(["", "no answer within 3 s"]))
@settings(max_examples=150, deadline=None)
def test_whatever_a_child_prints_is_an_answer_of_the_right_types_or_a_problem(
    output: bytes, problem: str
) -> None:
    cuda = told_by(output, problem, CudaAnswer)
    assert all(isinstance(device, DeviceFacts) for device in cuda.devices)
    assert cuda.init_error is None or type(cuda.init_error) is int
    assert cuda.problem or b'"done"' in output
    nvml = told_by(output, problem, NvmlFacts)
    assert all(isinstance(board, BoardFacts) for board in nvml.boards)


def test_lines_are_gathered_and_the_last_word_counts() -> None:
    lines = [
        {"call": "nvmlInit"},
        {"init_error": 0, "n_devices": 2},
        {"board": {"index": 0, "uuid": "GPU-0", "power_limit_w": 700.0}},
        {"call": "nvmlDeviceGetHandleByIndex"},
        {"board": {"index": 1, "handle_error": 15}},
        {"done": True},
    ]
    output = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert told_by(output, "", NvmlFacts) == NvmlFacts(
        init_error=0,
        n_devices=2,
        call="nvmlDeviceGetHandleByIndex",
        boards=(
            BoardFacts(0, "GPU-0", power_limit_w=700.0),
            BoardFacts(1, handle_error=15),
        ),
    )


def test_what_was_told_before_a_hang_is_kept() -> None:
    output = b'{"init_error": 0}\n{"board": {"index": 0}}\n{"call": "nvmlDeviceGetName"}\n{"boa'
    told = told_by(output, "no answer within 3 s", NvmlFacts)
    assert told.problem == "no answer within 3 s (in nvmlDeviceGetName)"
    assert told.boards == (BoardFacts(0),)


@pytest.mark.parametrize(
    "output",
    [
        b"no JSON\n",
        b"[]\n",
        b"[" * 100_000 + b"\n",
        b'{"init_error": "0", "done": true}\n',
        b'{"init_error": true, "done": true}\n',
        b'{"init_error": NaN, "done": true}\n',
        b'{"device": 5, "done": true}\n',
        b'{"devices": [], "done": true}\n',
        b'{"call": "\xff"}\n',
        b"1" * 5000 + b"\n",
    ],
    ids=lambda output: repr(output[:30]),
)
def test_what_is_none_of_ours_is_not_believed(output: bytes) -> None:
    assert told_by(output, "", CudaAnswer) == CudaAnswer(problem=SENSELESS)


def played(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> tuple[Plan, Path]:
    """Both children run this code instead; a node with a device file."""
    program = folder / "child.py"
    program.write_text(f"import os, sys, time\n{code}\n")
    monkeypatch.setattr(driver_child, "__file__", str(program))
    (folder / "nvidia0").touch()
    return plan_for("h100"), folder


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("sys.exit(3)", "the probing process ended with exit 3"),
        ("pass", "the probing process ended early"),
        ("os.kill(os.getpid(), 9)", "the probing process died of signal SIGKILL"),
        ("os.close(1); time.sleep(60)", "no answer within 1 s"),
        ("time.sleep(60)", "no answer within 1 s"),
        ("print('hello')", SENSELESS),
        (
            "while True: os.write(1, b'x' * 65536)",
            SENSELESS.replace("what makes no sense", "more than it can have to tell"),
        ),
        ('os.write(1, b\'{"call": "cuInit"}\\n\'); os.abort()', ""),
    ],
)
def test_a_child_that_tells_nothing_is_a_problem_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, problem: str
) -> None:
    plan, folder = played(monkeypatch, tmp_path, code)
    facts = probe_gpu(plan, {}, deadline_s=1.0, devices=folder, proc=folder)
    problem = problem or "the probing process died of signal SIGABRT (in cuInit)"
    assert facts.probe_problem == problem
    assert facts.nvml.problem == problem.replace("within 1 s", "within 0.67 s")
    assert (facts.init_error, facts.devices) == (None, ())


# A daemon of the driver's: it has the child's output, and stays.
LEAVE_ONE = """
made = os.fork()
if made == 0: time.sleep(7200)
with open(os.path.join(sys.argv[3], "left"), "a") as left: left.write(f"{made}\\n")
"""


@pytest.mark.parametrize(
    ("told", "init_error", "problem"),
    [
        (
            'os.write(1, b\'{"init_error": 100}\\n{"done": true}\\n\')\nos._exit(0)',
            100,
            "",
        ),
        (
            'os.write(1, b\'{"call": "cuInit"}\\n\')\nos.abort()',
            None,
            "the probing process died of signal SIGABRT (in cuInit)",
        ),
        ("sys.exit(0)", None, "the probing process ended early"),
    ],
)
def test_a_descendant_that_holds_the_output_open_is_neither_waited_for_nor_left(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    told: str,
    init_error: int | None,
    problem: str,
) -> None:
    _, folder = played(monkeypatch, tmp_path, f"{LEAVE_ONE}\n{told}")
    # Whoever waited for the end of the output would be here for an hour.
    cuda, nvml = ask_driver({}, 3600.0, devices=folder, proc=folder)
    assert (cuda.init_error, cuda.problem) == (init_error, problem)
    assert nvml is not None
    assert nvml.problem == problem
    left = [int(line) for line in (folder / "left").read_text().splitlines()]
    assert len(left) == 2
    until(lambda: not any(map(runs, left)), "the end of the descendants")


def test_a_child_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan, folder = played(monkeypatch, tmp_path, "")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    facts = probe_gpu(plan, {}, devices=folder, proc=folder)
    assert "the probing process could not start" in facts.probe_problem
    assert "the probing process could not start" in facts.nvml.problem
    assert facts.start_errno == facts.nvml.start_errno == errno.ENOENT


class Clock:
    """Time that passes only where somebody sleeps, or says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("app.probes.gpu.time", made)
    return made


NOT_READY = CudaAnswer(init_error=802, call="cuInit")
READY = CudaAnswer(init_error=0, n_devices=1, devices=(DeviceFacts(0, "", "GPU-0", (9, 0), 1),))
SETTLING = NvmlFacts(init_error=0, boards=(BoardFacts(0, "GPU-0", fabric_state=2),))
NOBODY = NvmlFacts()


def test_pauses_grow_to_five_seconds_and_end_with_the_window(clock: Clock) -> None:
    said: list[str] = []
    found = ask_until_ready(lambda _left, _nvml: (NOT_READY, NOBODY), 0, said.append)
    assert found == (NOT_READY, NOBODY, 180.0)
    assert clock.slept[:6] == [1, 1.5, 2.25, 3.375, 5, 5]
    assert sum(clock.slept) == 180
    why = "the CUDA driver is not ready (cuInit returned 802)"
    assert said[:2] == [
        f"{why}: asking again for 180 s at most",
        f"{why}: asking again for 157 s at most",
    ]


def test_a_long_wait_does_not_flood_the_log(clock: Clock) -> None:
    said: list[str] = []
    ask_until_ready(lambda _left, _nvml: (NOT_READY, NOBODY), 0, said.append)
    assert len(clock.slept) > 30
    assert len(said) <= 180 / 20


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    "answer",
    [
        CudaAnswer(init_error=919, call="cuInit"),
        CudaAnswer(init_error=802, call="cuDeviceGetCount"),
        CudaAnswer(init_error=0, context_error=802, call="cuDevicePrimaryCtxRetain"),
        CudaAnswer(init_error=0, context_error=919, call="cuDevicePrimaryCtxRetain"),
    ],
)
def test_a_fabric_that_is_not_ready_is_waited_for_whichever_call_says_so(
    answer: CudaAnswer,
) -> None:
    _, _, waited_s = ask_until_ready(lambda _left, _nvml: (answer, NOBODY), 10, lambda _text: None)
    assert waited_s == pytest.approx(6.5)


@given(limit_s=st.floats(0.2, 1000), cost_s=st.floats(0.01, 40))
@settings(deadline=None)
def test_the_last_answer_is_in_before_the_stages_deadline(limit_s: float, cost_s: float) -> None:
    made = Clock()
    lefts: list[float] = []

    def ask(left_s: float, _nvml: bool) -> tuple[CudaAnswer, NvmlFacts]:
        lefts.append(left_s)
        made.now += min(left_s, cost_s)
        return NOT_READY, NOBODY

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.probes.gpu.time", made)
        _, _, waited_s = ask_until_ready(ask, limit_s, lambda _text: None)
    assert waited_s <= 0.85 * limit_s + 0.1
    assert made.now - 1000 <= 0.85 * limit_s + 0.1


def test_a_device_that_answers_at_once_was_not_waited_for(clock: Clock) -> None:
    def ask(_left: float, _nvml: bool) -> tuple[CudaAnswer, NvmlFacts]:
        clock.now += 20
        return READY, NOBODY

    assert ask_until_ready(ask, 300, lambda _text: None) == (READY, NOBODY, 0.0)


def test_a_device_that_comes_up_was_waited_for(clock: Clock) -> None:
    answers = iter([(NOT_READY, NOBODY), (NOT_READY, NOBODY), (READY, NOBODY)])
    found = ask_until_ready(lambda _left, _nvml: next(answers), 300, lambda _text: None)
    assert found == (READY, NOBODY, 2.5)
    assert clock.slept == [1, 1.5]


def test_nvml_that_hung_is_not_asked_again(clock: Clock) -> None:
    hung, asked = NvmlFacts(problem="no answer within 20 s"), []

    def ask(_left: float, with_nvml: bool) -> tuple[CudaAnswer, NvmlFacts | None]:
        asked.append(with_nvml)
        ready = len(asked) == 3
        return (READY if ready else NOT_READY), (hung if with_nvml else None)

    assert ask_until_ready(ask, 300, lambda _text: None) == (READY, hung, sum(clock.slept))
    assert asked == [True, False, False]


def test_a_fabric_in_progress_is_waited_for_and_less_long_where_cuda_answers(clock: Clock) -> None:
    _, _, waited_s = ask_until_ready(lambda _left, _nvml: (READY, SETTLING), 0, lambda _text: None)
    assert waited_s == 30
    failing = CudaAnswer(init_error=999, call="cuInit")
    clock.now = 1000
    _, _, waited_s = ask_until_ready(lambda _l, _n: (failing, SETTLING), 0, lambda _text: None)
    assert waited_s == 180


def test_a_last_question_without_time_for_an_answer_takes_nothing_back(clock: Clock) -> None:
    problem = "no answer within 0.2 s (in cuInit)"

    def ask(left_s: float, _nvml: bool) -> tuple[CudaAnswer, NvmlFacts]:
        if left_s > 2:
            return NOT_READY, SETTLING
        return CudaAnswer(problem=problem), NvmlFacts(problem=problem)

    cuda, nvml, waited_s = ask_until_ready(ask, 4, lambda _text: None)
    assert (cuda, nvml) == (NOT_READY, SETTLING)
    assert waited_s == pytest.approx(2.6)
    assert len(clock.slept) > 1


def test_a_driver_that_hangs_after_it_was_not_ready_hangs(clock: Clock) -> None:
    answers = iter([NOT_READY, CudaAnswer(problem="no answer within 30 s (in cuInit)")])
    cuda, _, _ = ask_until_ready(lambda _l, _n: (next(answers), NOBODY), 300, lambda _text: None)
    assert cuda.problem
    assert clock.slept == [1]


def test_another_boards_fabric_is_none_of_our_business(clock: Clock) -> None:
    other = NvmlFacts(
        boards=(BoardFacts(0, "GPU-0", fabric_state=3), BoardFacts(1, "GPU-1", fabric_state=2))
    )
    _, _, waited_s = ask_until_ready(lambda _left, _nvml: (READY, other), 0, lambda _text: None)
    assert (waited_s, clock.slept) == (0, [])


@pytest.mark.parametrize(
    "answer",
    [
        CudaAnswer(problem="no answer within 30 s"),
        CudaAnswer(load_error="no file"),
        CudaAnswer(init_error=999),
    ],
)
def test_nothing_else_is_asked_twice(clock: Clock, answer: CudaAnswer) -> None:
    found = ask_until_ready(lambda _left, _nvml: (answer, NOBODY), 300, lambda _text: None)
    assert found == (answer, NOBODY, 0.0)
    assert clock.slept == []
