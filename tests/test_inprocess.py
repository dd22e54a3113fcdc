"""Facts about `boot_gemma` in the caller's process: warnings, token, environment, the real path.

`python -m tests.test_inprocess HARDWARE FOLDER MAJOR MINOR` boots on the real path with the card
faked by `tests.shadow_cuda`, and prints what happened. It stands in for a GPU as far as dtypes,
guards and the order of the calls go: real Unsloth, transformers, peft and NF4 on the CPU. Kernels,
memory, device placement and a forward pass are not shown by it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import app
from app import inprocess
from app.checks import Check
from app.config import ModelRequest
from app.engine import stack as stack_engine
from app.errors import BootError
from app.facts.cache import CacheFacts
from app.outcome import Fault, Finding, failed, passed, warned
from app.plan import Plan
from app.profiles import PROFILES, V100
from tests.tiny_models import tiny_model

ROOT = Path(__file__).resolve().parent.parent
PLAN = Plan(V100, ModelRequest(base_model_id="org/name"), Path())


def says(finding: Finding) -> Check[None]:
    return Check("load.odd", Fault.DATA_INVALID, "a test", lambda _facts, _plan: finding)


WARNED = warned("two are left over", expected="none", actual="two", next_step="look at them")


def test_what_warns_in_a_report_warns_the_caller() -> None:
    with pytest.warns(UserWarning, match="odd") as caught:
        inprocess.require([says(passed("fine")), says(WARNED)], None, PLAN)
    assert [str(each.message) for each in caught] == [
        "load.odd: two are left over; next step: look at them"
    ]
    assert caught[0].filename == __file__  # the line outside this package


def test_what_fails_a_boot_is_raised_with_every_field() -> None:
    broken = failed("torn", expected="whole", actual="half", next_step="mend it")
    with pytest.raises(BootError, match="torn; expected whole; actual half; next step: mend it"):
        inprocess.require([says(broken)], None, PLAN)


@pytest.mark.parametrize(
    ("variables", "token"),
    [
        ({"HF_TOKEN": "hf_one"}, "hf_one"),
        ({"HF_TOKEN": " hf_one\n"}, "hf_one"),
        ({"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "hf_old"}, "hf_old"),
        ({"HF_TOKEN": " "}, None),
        ({}, None),
    ],
)
def test_the_ecosystems_variable_is_the_token(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], token: str | None
) -> None:
    asked: list[str | None] = []

    def resolve(plan: Plan, _environ: object, *, token: str | None) -> CacheFacts:
        asked.append(token)
        absent = failed("no such model", expected="", actual="", next_step="")
        name = plan.request.base_model_id
        return CacheFacts(name, name, "hub", "", failure=absent)

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(inprocess, "resolve_model", resolve)
    with pytest.raises(BootError, match="no such model"):
        inprocess._checkpoint(PLAN)
    assert asked == [token]


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The caller's variables: one that is cleared, one that is forced, the rest unset."""
    monkeypatch.setenv("UNSLOTH_ALLOW_CPU", "1")
    monkeypatch.setenv("UNSLOTH_DISABLE_STATISTICS", "0")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    before = dict(os.environ)
    yield variables()
    os.environ.clear()
    os.environ.update(before)


def variables() -> dict[str, str]:
    """The environment without what pytest writes at every phase of a test."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def imports(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """An import of the stack that writes a variable of its own and then fails, or does not."""

    def import_stack(*, tolerate_torch: bool) -> None:
        assert tolerate_torch
        assert os.environ["UNSLOTH_DISABLE_CPU_FALLBACK"] == "1"
        assert "UNSLOTH_ALLOW_CPU" not in os.environ
        monkeypatch.setenv("UNSLOTH_IS_PRESENT", "1")
        if error is not None:
            raise error
        monkeypatch.setitem(sys.modules, "unsloth", ModuleType("unsloth"))

    def guarded(_plan: Plan) -> tuple[object, object]:
        raise BootError("no such model", fault=Fault.MODEL_ABSENT)

    monkeypatch.setattr(stack_engine, "import_stack", import_stack)
    monkeypatch.setattr(inprocess, "_guarded", guarded)


def test_a_failed_import_leaves_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    imports(monkeypatch, BootError("no GPU", fault=Fault.NODE_UNFIT))
    with pytest.raises(BootError, match="no GPU"):
        inprocess.boot(PLAN)
    assert variables() == environ | {"UNSLOTH_IS_PRESENT": "1"}


def test_what_unsloth_was_imported_with_stays(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    imports(monkeypatch, None)
    with pytest.raises(BootError, match="no such model"):
        inprocess.boot(PLAN)
    assert os.environ["UNSLOTH_DISABLE_STATISTICS"] == "1"
    assert "UNSLOTH_ALLOW_CPU" not in os.environ
    assert "HF_HUB_OFFLINE" not in os.environ.keys() - environ.keys()


def test_an_unsloth_of_the_callers_keeps_the_callers_environment(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, "unsloth", ModuleType("unsloth"))
    imports(monkeypatch, None)
    with pytest.raises(BootError, match="no such model"):
        inprocess.boot(PLAN)
    assert variables() == environ | {"UNSLOTH_IS_PRESENT": "1"}


def test_what_others_wrote_meanwhile_is_not_taken_back(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    def import_stack(**_options: bool) -> None:
        os.environ["UNSLOTH_DISABLE_STATISTICS"] = os.environ["UNSLOTH_ALLOW_CPU"] = "theirs"
        raise BootError("no GPU", fault=Fault.NODE_UNFIT)

    monkeypatch.setattr(stack_engine, "import_stack", import_stack)
    with pytest.raises(BootError, match="no GPU"):
        inprocess.boot(PLAN)
    theirs = dict.fromkeys(("UNSLOTH_DISABLE_STATISTICS", "UNSLOTH_ALLOW_CPU"), "theirs")
    assert variables() == environ | theirs


# The real path, in children: importing Unsloth takes about ten seconds.


def child(*command: str) -> dict[str, Any]:
    """The JSON on the last line that a Python process prints."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def shadow_boot(hardware: str, capability: tuple[int, int]) -> dict[str, Any]:
    folder = str(tiny_model("gemma3n-nf4"))
    return child("-m", "tests.test_inprocess", hardware, folder, *map(str, capability))


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize(("hardware", "dtype"), [("v100", "float16"), ("h100", "bfloat16")])
def test_the_real_path_loads_guards_adapts_and_guards(hardware: str, dtype: str) -> None:
    capability = PROFILES[hardware].compute_capability
    assert capability is not None
    told = shadow_boot(hardware, capability)
    assert told == {
        "calls": ["judge", "attach", "judge"],
        "model": "PeftModelForCausalLM",
        "tokenizer": "Gemma3nProcessor",
        "dtypes": sorted([f"torch.{dtype}", "torch.float32", "torch.uint8"]),
        "warnings": [],
    }


@pytest.mark.stack
@pytest.mark.slow
def test_slippage_of_the_real_path_raises_before_the_adapter() -> None:
    """On a card without bfloat16 Unsloth loads float16 instead of what it is asked for."""
    told = shadow_boot("h100", (7, 0))
    assert told["raised"] == "FP16SlippageError"
    assert told["calls"] == ["judge"]
    assert "conv_stem.weight is float16" in told["text"]
    assert "Halt training" in told["text"]


NO_GPU = """
import json, os, sys
sys.path.insert(0, ".")
{first}
import app
before = dict(os.environ)
try:
    app.boot_gemma(app.BootConfig(hardware="h100", base_model_id=sys.argv[1]))
except app.errors.BootError as error:
    found = error.finding
    pins = ("UNSLOTH_DISABLE_CPU_FALLBACK", "UNSLOTH_COMPILE_LOCATION", "TRITON_CACHE_DIR")
    print(json.dumps({{
        "fault": found.fault, "text": str(error), "left": [n for n in pins if n in os.environ],
        "cleared": os.environ.get("UNSLOTH_CPU_LOAD_IN_4BIT"),
    }}))
"""


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("", "importing unsloth failed: NotImplementedError"),
        ("import unsloth", "Unsloth runs on cpu, not on cuda"),
    ],
    ids=["fresh", "unsloth imported by the caller, on its CPU backend"],
)
def test_without_a_gpu_it_fails_instead_of_training_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, first: str, said: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("UNSLOTH_CPU_LOAD_IN_4BIT", "1")
    told = child("-c", NO_GPU.format(first=first), str(tiny_model("gemma3n-nf4")))
    assert told["fault"] == Fault.NODE_UNFIT
    assert said in told["text"]
    assert "next step: " in told["text"]
    assert (told["left"], told["cleared"]) == ([], "1")


def fake_card(told: dict[str, Any], hardware: str, capability: tuple[int, int]) -> None:
    """The card's part of the real path: its probes, what the stack says of it, its device."""
    from app import gemma, slippage
    from app.engine import environment
    from tests.shadow_cuda import fake_device, fake_flags

    profile = replace(PROFILES[hardware], device="cpu", environment=())
    real_import, real_gather, judge = (
        stack_engine.import_stack,
        stack_engine.gather,
        slippage.judge,
    )
    assert profile.compute_capability is not None
    kernels = "sm_{}{}".format(*profile.compute_capability)

    def judging(*arguments: Any) -> None:
        told["calls"].append("judge")
        judge(*arguments)

    def import_stack(**options: bool) -> None:
        # Cleared by our own pinning, and the only way to the CUDA branches without a device.
        os.environ["UNSLOTH_ALLOW_CPU"] = "1"
        fake_device(capability)
        real_import(**options)
        fake_flags(capability)
        from app.engine import adapter

        attach = adapter.attach

        def attaching(*arguments: Any) -> Any:
            told["calls"].append("attach")
            return attach(*arguments)

        patch.setattr(adapter, "attach", attaching)

    patch = pytest.MonkeyPatch()
    patch.setattr(gemma, "PROFILES", {hardware: profile})
    patch.setattr(slippage, "judge", judging)
    patch.setattr(environment, "_CLEARED", ())
    patch.setattr(stack_engine, "import_stack", import_stack)
    patch.setattr(
        stack_engine,
        "gather",
        lambda: replace(real_gather(), device_type="cpu", architectures=(kernels,)),
    )


def main(hardware: Any, folder: str, capability: tuple[int, int]) -> None:
    """One boot, in a process of its own."""
    told: dict[str, Any] = {"calls": []}
    fake_card(told, hardware, capability)
    config = app.BootConfig(
        hardware=hardware,
        base_model_id=folder,
        max_seq_length=256,
        use_gradient_checkpointing=True,  # "unsloth" pins host memory, which needs a driver
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model, tokenizer = app.boot_gemma(config)
        except AssertionError as error:
            told |= {"raised": type(error).__name__, "text": str(error)}
        else:
            told |= {"model": type(model).__name__, "tokenizer": type(tokenizer).__name__}
            told["dtypes"] = sorted({str(each.dtype) for each in model.parameters()})
    told["warnings"] = [str(each.message) for each in caught if "next step" in str(each.message)]
    print(json.dumps(told))  # noqa: T201 - for the parent


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], (int(sys.argv[3]), int(sys.argv[4])))
