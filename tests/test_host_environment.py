"""Variables of others as the host stage judges them, where the profile has a say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import pytest

from app.checks._allocator import OPTIONS, wrong_options
from app.checks.host import CHECKS
from app.facts.packages import PackagesFacts
from app.facts.surroundings import WATCHED, Surroundings
from app.outcome import Fault, Finding, Status
from app.probes.surroundings import (
    missing_preloads,
    probe_surroundings,
    torch_log_names,
    unknown_logs,
)
from tests.fakes_preflight import findings, plan_for
from tests.test_host_node import NODE


def judged(hardware: str, environ: dict[str, str]) -> Finding:
    facts = replace(NODE, surroundings=probe_surroundings(environ))
    return findings(CHECKS, facts, plan_for(hardware))["host.environment"]


@pytest.mark.parametrize(
    ("hardware", "value", "status"),
    [
        ("v100", "bf16", Status.FAIL),
        ("v100", "BF16", Status.FAIL),
        ("v100", "fp8", Status.FAIL),
        ("v100", "fp16", Status.PASS),
        ("h100", "fp16", Status.FAIL),
        ("h100", "fp8", Status.WARN),
        ("h100", "bf16", Status.PASS),
        ("h100", "no", Status.PASS),
        ("cpu", "bf16", Status.PASS),
        ("cpu", "fp16", Status.PASS),
    ],
)
def test_a_trainers_precision_is_that_of_the_profile(
    hardware: str, value: str, status: Status
) -> None:
    found = judged(hardware, {"ACCELERATE_MIXED_PRECISION": value})
    assert found.status is status
    if status is Status.FAIL:
        assert "ACCELERATE_MIXED_PRECISION" in found.reason
        assert "unset ACCELERATE_MIXED_PRECISION" in found.next_step


@pytest.mark.parametrize("name", ["NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"])
def test_hardware_without_a_mode_of_19_bits_cannot_be_told_to_use_it(name: str) -> None:
    """NVIDIA's own images set one of them, on any node."""
    assert judged("v100", {name: "1"}).status is Status.PASS
    assert judged("h100", {name: "1"}).status is Status.WARN


def test_it_is_the_users_to_mend() -> None:
    (check,) = [each for each in CHECKS if each.id == "host.environment"]
    assert check.fault is Fault.CONFIG


@pytest.mark.parametrize(
    ("name", "value", "gpu", "cpu"),
    [
        ("ACCELERATE_USE_CPU", "true", Status.FAIL, Status.PASS),
        ("ACCELERATE_USE_CPU", "false", Status.PASS, Status.PASS),
        ("ACCELERATE_TORCH_DEVICE", "cpu", Status.FAIL, Status.PASS),
        ("ACCELERATE_TORCH_DEVICE", "cuda:0", Status.PASS, Status.PASS),
        ("ACCELERATE_TORCH_DEVICE", "cuda", Status.PASS, Status.PASS),
        ("ACCELERATE_TORCH_DEVICE", "cuda:9", Status.FAIL, Status.PASS),
        ("ACCELERATE_USE_FSDP", "1", Status.WARN, Status.WARN),
        ("ACCELERATE_USE_DEEPSPEED", "true", Status.WARN, Status.WARN),
        ("CUDA_LAUNCH_BLOCKING", "1", Status.WARN, Status.PASS),
        ("CUDA_LAUNCH_BLOCKING", "0", Status.PASS, Status.PASS),
        ("LD_PRELOAD", "/no/such.so", Status.WARN, Status.WARN),
        ("LD_PRELOAD", "libjemalloc.so.2", Status.PASS, Status.PASS),
        ("LOCAL_RANK", "0", Status.WARN, Status.WARN),
        ("LOCAL_RANK", "-1", Status.PASS, Status.PASS),
        ("NVIDIA_TF32_OVERRIDE", "0", Status.PASS, Status.PASS),
        ("NVIDIA_TF32_OVERRIDE", "1", Status.WARN, Status.PASS),
        ("OMP_NUM_THREADS", "abc", Status.WARN, Status.WARN),
        ("OMP_NUM_THREADS", "0", Status.WARN, Status.WARN),
        ("OMP_NUM_THREADS", "4,2", Status.PASS, Status.PASS),
        ("OMP_NUM_THREADS", "8", Status.PASS, Status.PASS),
        ("PYTHONOPTIMIZE", "1", Status.WARN, Status.WARN),
        ("PYTHONOPTIMIZE", "0", Status.PASS, Status.PASS),
        ("PYTHONWARNINGS", "ignore,error::UserWarning", Status.WARN, Status.WARN),
        ("PYTHONWARNINGS", "ignore", Status.PASS, Status.PASS),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", Status.PASS, Status.PASS),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:1", Status.FAIL, Status.PASS),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:true", Status.FAIL, Status.PASS),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size:128", Status.FAIL, Status.PASS),
        ("PYTORCH_HIP_ALLOC_CONF", "max_split_size:128", Status.FAIL, Status.PASS),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128", Status.PASS, Status.PASS),
        (
            "PYTORCH_CUDA_ALLOC_CONF",
            "roundup_power2_divisions:[256:1,512:2], backend:native",
            Status.PASS,
            Status.PASS,
        ),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", Status.WARN, Status.PASS),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", Status.WARN, Status.PASS),
        ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1", Status.WARN, Status.WARN),
        ("TORCH_LOGS", "+dynamo,torch.nn", Status.PASS, Status.PASS),
        ("TORCH_LOGS", "+dynamoo", Status.FAIL, Status.FAIL),
        ("TRITON_INTERPRET", "1", Status.WARN, Status.PASS),
    ],
)
def test_what_changes_speed_or_meaning_is_named(
    name: str, value: str, gpu: Status, cpu: Status
) -> None:
    for hardware, status in (("h100", gpu), ("cpu", cpu)):
        found = judged(hardware, {name: value})
        assert found.status is status, hardware
        if status is not Status.PASS:
            assert name in found.reason
            assert name in found.next_step


def test_a_whole_torchrun_of_one_process_is_fine() -> None:
    one = {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    assert judged("cpu", one).status is Status.PASS


def test_what_stops_the_job_comes_before_what_slows_it() -> None:
    found = judged("v100", {"CUDA_LAUNCH_BLOCKING": "1", "ACCELERATE_MIXED_PRECISION": "bf16"})
    assert found.status is Status.FAIL
    assert found.reason.startswith("ACCELERATE_MIXED_PRECISION")
    assert "CUDA_LAUNCH_BLOCKING" in found.actual


def test_only_watched_variables_are_carried() -> None:
    environ = {"HF_TOKEN": "hf_x", "PYTHONOPTIMIZE": "1"}
    assert probe_surroundings(environ) == Surroundings(variables={"PYTHONOPTIMIZE": "1"})


def test_every_watched_variable_is_judged() -> None:
    """Each of them changes the judgement at some value."""
    values = ("1", "-1", "bf16", "x", "true", "error", "a:b", "/no/such.so", "nolog", "0")
    silent = {
        name
        for name in WATCHED
        if all(
            judged(hardware, {name: value}).status is Status.PASS
            for value in values
            for hardware in ("v100", "h100")
        )
    }
    assert silent == {"MASTER_ADDR"}  # read beside LOCAL_RANK


def test_preloaded_libraries_are_separated_as_the_loader_does(tmp_path: Path) -> None:
    (tmp_path / "there.so").touch()
    value = f"{tmp_path}/there.so /no/a.so:/no/b.so libc.so.6"
    assert missing_preloads(value) == ("/no/a.so", "/no/b.so")
    assert missing_preloads("") == ()


def test_names_of_logs_are_read_from_the_installed_torch() -> None:
    names = torch_log_names()
    assert names is not None
    assert {"dynamo", "inductor", "recompiles", "output_code", "aot"} <= names
    assert unknown_logs("all,+dynamo,-aot,torch._dynamo.utils,json") == ()
    assert unknown_logs("dynamo,nolog,help") == ("nolog", "help")
    assert unknown_logs("dynamo,,") == ("", "")


def test_a_log_file_that_torch_cannot_open_stops_its_import(tmp_path: Path) -> None:
    gone = judged("cpu", {"TORCH_LOGS_OUT": str(tmp_path / "no" / "file")})
    assert gone.status is Status.FAIL
    assert "TORCH_LOGS_OUT" in gone.reason
    assert judged("cpu", {"TORCH_LOGS_OUT": str(tmp_path)}).status is Status.FAIL
    assert judged("cpu", {"TORCH_LOGS_OUT": str(tmp_path / "file")}).status is Status.PASS
    assert not list(tmp_path.iterdir())


def test_without_torch_no_log_is_judged(tmp_path: Path) -> None:
    assert unknown_logs("nolog", tmp_path) == ()
    assert torch_log_names(tmp_path) is None


def test_the_options_of_the_allocator_stand_in_torchs_libraries() -> None:
    """As text in the binaries; the compiler may have cut a name into moves of eight bytes."""
    folder = Path(str(distribution("torch").locate_file("torch/lib")))
    text = (folder / "libc10.so").read_bytes() + (folder / "libc10_cuda.so").read_bytes()
    assert not [name for name in OPTIONS if name[:7].encode() not in text]


TAKEN = [
    *("", " ", "expandable_segments:True,", "max_split_size_mb:128MB", " max_split_size_mb : 20 "),
    *("max_split_size_mb:-5", "garbage_collection_threshold:0.6", "per_process_memory_fraction:1"),
    *("roundup_power2_divisions:4", "roundup_power2_divisions:[256:1,512:2,>:0]", "backend:native"),
    *("roundup_power2_divisions:[256:1,]", "pinned_num_register_threads:8"),
    *("large_segment_size_mb:11", "per_process_memory_fraction:5e-1"),
    "roundup_power2_divisions:[256:1,512:2],expandable_segments:False",
]
REFUSED = [
    *(
        "expandable_segments:true",
        "expandable_segments:1",
        "expandable_segments:[True]",
        "nosuch:1",
    ),
    *(
        "max_split_size_mb:abc",
        "max_split_size_mb:1",
        "max_split_size_mb:1.5",
        "max_split_size:128",
    ),
    *("garbage_collection_threshold:0", "garbage_collection_threshold:1.0", "backend:Native"),
    *("per_process_memory_fraction:7", "per_process_memory_fraction:x", "large_segment_size_mb:10"),
    *(
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[300:2]",
        "throw_on_cudamalloc_oom:x",
    ),
    *("roundup_power2_divisions:[256:3]", "pinned_num_register_threads:256", "a", ",", "a=b"),
    *("pinned_num_register_threads:3", "pinned_reserve_segment_size_mb:0", "Backend:native"),
    "expandable_segments:True,,backend:native",
]


def test_options_of_the_allocator_are_taken_or_refused_by_name() -> None:
    assert not [value for value in TAKEN if wrong_options(value)]
    assert not [value for value in REFUSED if not wrong_options(value)]
    value = "expandable_segments:True, max_split_size_mb:4,backend:x"
    assert wrong_options(value) == ["max_split_size_mb:4", "backend:x"]


@pytest.mark.stack
def test_the_real_allocator_takes_and_refuses_the_same() -> None:
    """In a process of its own: options stay set, and some bounds are those of others."""
    code = (
        "import json, sys, torch\n"
        "refused = []\n"
        "for value in json.load(sys.stdin):\n"
        "    torch._C._accelerator_setAllocatorSettings('large_segment_size_mb:20')\n"
        "    try: torch._C._accelerator_setAllocatorSettings(value)\n"
        "    except Exception: refused.append(value)\n"
        "print(json.dumps(refused))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([*TAKEN, *REFUSED]).encode(),
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == REFUSED


@pytest.mark.parametrize("name", ["ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM"])
def test_a_way_of_spreading_without_its_package_stops_trainers(name: str) -> None:
    facts = replace(NODE, surroundings=probe_surroundings({name: "true"}))
    bare = replace(facts, packages=PackagesFacts({"torch": "2.14.1"}))
    found = findings(CHECKS, bare, plan_for("h100"))["host.environment"]
    assert (found.status, found.next_step) == (Status.FAIL, f"unset {name}")
    whole = PackagesFacts({"deepspeed": "0.19.0", "megatron-core": "0.16.0"})
    full = replace(facts, packages=whole)
    assert findings(CHECKS, full, plan_for("h100"))["host.environment"].status is Status.WARN


@pytest.mark.stack
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_LOGS", "+dynamoo"),
        ("TORCH_LOGS_OUT", "/no/such/file"),
        ("PYTORCH_ALLOC_CONF", "garbage"),
        ("PYTHONOPTIMIZE", "2"),
    ],
)
def test_the_real_stack_dies_of_what_is_refused(name: str, value: str) -> None:
    code = "import torch"
    if name == "PYTHONOPTIMIZE":
        code += ", transformers.modeling_outputs, transformers.models.llama.modeling_llama"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ) | {name: value},
        capture_output=True,
        check=False,
    )
    assert done.returncode


@pytest.mark.stack
def test_the_real_accelerate_dies_of_what_is_refused() -> None:
    """In a process of its own, one after the other; the last value is a good one."""
    tried = [
        ("ACCELERATE_DYNAMO_BACKEND", ""),
        ("ACCELERATE_DYNAMO_BACKEND", "bogus"),
        ("ACCELERATE_DYNAMO_USE_DYNAMIC", "maybe"),
        ("ACCELERATE_DYNAMO_USE_FULLGRAPH", "maybe"),
        ("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", ""),
        ("ACCELERATE_FP8_BACKEND", "no"),
        ("ACCELERATE_TORCH_DEVICE", "bogus"),
        ("ACCELERATE_TORCH_DEVICE", "cuda:00"),
        ("ACCELERATE_USE_DEEPSPEED", "true"),
        ("ACCELERATE_USE_MEGATRON_LM", "true"),
        ("ACCELERATE_DYNAMO_BACKEND", "inductor"),
    ]
    code = (
        "import json, os, sys\n"
        "from accelerate import Accelerator\n"
        "from accelerate.state import AcceleratorState\n"
        "died = []\n"
        "for name, value in json.load(sys.stdin):\n"
        "    AcceleratorState._reset_state(reset_partial_state=True)\n"
        "    os.environ[name] = value\n"
        "    try: Accelerator()\n"
        "    except Exception: died.append([name, value])\n"
        "    del os.environ[name]\n"
        "print(json.dumps(died))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(tried).encode(),
        capture_output=True,
        check=True,
    )
    assert [tuple(each) for each in json.loads(done.stdout.splitlines()[-1])] == tried[:-1]
