"""The judge of variables that other libraries read: which of them change what this boot does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from app.checks import Check
from app.checks._allocator import wrong_options
from app.facts.host import HostFacts
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, warned
from app.plan import Plan
from app.profiles import Profile

_OFF = frozenset(("", "0", "n", "no", "f", "false", "off"))
_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
_FP8 = (8, 9)  # the first compute capability with 8-bit floats
_TF32 = (8, 0)  # and with products of 19 bits
_THREADS = re.compile(r"\s*[1-9][0-9]*(\s*,\s*[1-9][0-9]*)*\s*")


def environment(facts: HostFacts, plan: Plan) -> Finding:
    """What stops the job, or lets it train something else, fails; what makes it slow warns."""
    said = [rule(facts, plan.profile) for rule in _RULES]
    found = [each for each in said if each is not None]
    if not found:
        return passed("no variable of another library changes what this boot does")
    worst = [each for each in found if each.stops] or found
    reason = f"{worst[0].name}: {worst[0].what}"
    reason += f" (+{len(found) - 1} more)" if len(found) > 1 else ""
    expected = "variables of other libraries that leave precision, device and speed alone"
    actual = listed(f"{each.name}: {each.what}" for each in found)
    step = listed((each.step or f"unset {each.name}" for each in found), between="; ")
    judged = failed if worst[0].stops else warned
    return judged(reason, expected=expected, actual=actual, next_step=step)


@dataclass(frozen=True, slots=True)
class _Said:
    """A variable, what it does, and whether that must not be."""

    name: str
    what: str
    stops: bool = False
    step: str = ""


_RuleT = Callable[[HostFacts, Profile], _Said | None]


def _on(facts: HostFacts, name: str) -> bool:
    """Whether a switch is on, as most readers of such take it."""
    return facts.surroundings.variables.get(name, "").strip().lower() not in _OFF


def _mixed_precision(facts: HostFacts, profile: Profile) -> _Said | None:
    name = "ACCELERATE_MIXED_PRECISION"
    value = facts.surroundings.variables.get(name, "").strip().lower()
    dtype = _DTYPES.get(value)
    if not profile.needs_gpu or not value or value == "no":
        return None
    if dtype in profile.forbidden_dtypes:
        what = f"it asks trainers for {dtype}, and {profile.name} is {profile.compute_dtype}: "
        return _Said(name, what + profile.dtype_reason, stops=True)
    if value == "fp8":
        can = profile.compute_capability is not None and profile.compute_capability >= _FP8
        what = "it asks trainers for 8-bit floats, which nothing here has proved"
        return _Said(name, what, stops=not can)
    return None


def _on_cpu(facts: HostFacts, profile: Profile) -> _Said | None:
    if profile.needs_gpu and _on(facts, "ACCELERATE_USE_CPU"):
        return _Said(
            "ACCELERATE_USE_CPU", "trainers take the CPU though there is a GPU", stops=True
        )
    return None


def _other_device(facts: HostFacts, profile: Profile) -> _Said | None:
    """It overrides every other choice of a device; a boot has one, and trainers count from 0."""
    name = "ACCELERATE_TORCH_DEVICE"
    value = facts.surroundings.variables.get(name, "")
    if not profile.needs_gpu or value in ("", profile.device, f"{profile.device}:0"):
        return None
    return _Said(name, f"trainers take the device {one_line(value, 40)!r}", stops=True)


def _spread(name: str, package: str = "") -> _RuleT:
    """Ways of spreading a model over devices; accelerate raises where one lacks its package."""

    def rule(facts: HostFacts, _profile: Profile) -> _Said | None:
        if not _on(facts, name):
            return None
        value = facts.surroundings.variables[name].lower()
        installed = facts.packages.versions if facts.packages else {package: ""}
        if package and value == "true" and package not in installed:
            what = f"trainers need {package} for it, which is not installed"
            return _Said(name, what, stops=True)
        return _Said(name, "trainers take that way of spreading a model over devices")

    return rule


def _torch_logs(facts: HostFacts, _profile: Profile) -> _Said | None:
    unknown = facts.surroundings.unknown_logs
    if not unknown:
        return None
    what = f"the installed torch knows no log {listed(unknown, 3)}, and its import dies of that"
    return _Said("TORCH_LOGS", what, stops=True, step="correct or unset TORCH_LOGS")


def _torch_log_file(facts: HostFacts, _profile: Profile) -> _Said | None:
    problem = facts.surroundings.log_file_problem
    if not problem:
        return None
    what = f"torch cannot open its log file, and its import dies of that: {problem}"
    return _Said("TORCH_LOGS_OUT", what, stops=True, step="correct or unset TORCH_LOGS_OUT")


def _half_a_rank(facts: HostFacts, _profile: Profile) -> _Said | None:
    """torchrun sets all of them; accelerate takes the rank alone for a distributed job."""
    variables = facts.surroundings.variables
    if variables.get("LOCAL_RANK", "-1") == "-1" or variables.get("MASTER_ADDR"):
        return None
    what = "accelerate takes it for a job of several ranks, and finds no MASTER_ADDR"
    return _Said("LOCAL_RANK", what, step="unset LOCAL_RANK, or start the job with torchrun")


def _asserts_off(facts: HostFacts, _profile: Profile) -> _Said | None:
    if facts.surroundings.variables.get("PYTHONOPTIMIZE", "") in ("", "0"):
        return None
    return _Said("PYTHONOPTIMIZE", "the libraries' own assertions are off")


def _warnings_as_errors(facts: HostFacts, _profile: Profile) -> _Said | None:
    value = facts.surroundings.variables.get("PYTHONWARNINGS", "")
    if not any(part.strip().startswith("error") for part in value.split(",")):
        return None
    return _Said("PYTHONWARNINGS", "a mere warning of a library can end the job")


def _preloads(facts: HostFacts, _profile: Profile) -> _Said | None:
    missing = facts.surroundings.missing_preloads
    if not missing:
        return None
    what = f"it names libraries that are not there: {listed(missing, 3)}"
    return _Said("LD_PRELOAD", what, step="correct or unset LD_PRELOAD")


def _threads(facts: HostFacts, _profile: Profile) -> _Said | None:
    value = facts.surroundings.variables.get("OMP_NUM_THREADS", "")
    if not value or _THREADS.fullmatch(value):
        return None
    what = f"it is no number of threads ({one_line(value, 40)!r}), and is ignored"
    return _Said("OMP_NUM_THREADS", what, step="set OMP_NUM_THREADS to a whole number from 1")


def _allocator(name: str) -> _RuleT:
    """torch reads it when it first touches the device, and raises there."""

    def rule(facts: HostFacts, profile: Profile) -> _Said | None:
        wrong = wrong_options(facts.surroundings.variables.get(name, ""))
        if not profile.needs_gpu or not wrong:
            return None
        what = f"torch's allocator takes no such option or value, and raises: {listed(wrong, 3)}"
        return _Said(name, what, stops=True, step=f"correct or unset {name}")

    return rule


def _switch(name: str, what: str, *, gpu: bool = True) -> _RuleT:
    """One that is better off, where it counts."""

    def rule(facts: HostFacts, profile: Profile) -> _Said | None:
        return _Said(name, what) if _on(facts, name) and (profile.needs_gpu or not gpu) else None

    return rule


def _tf32(name: str) -> _RuleT:
    """Volta has no such mode, and 0 forbids it."""

    def rule(facts: HostFacts, profile: Profile) -> _Said | None:
        capability = profile.compute_capability
        if capability is None or capability < _TF32 or not _on(facts, name):
            return None
        return _Said(name, "products of float32 are computed in 19 bits (TF32)")

    return rule


_RULES: tuple[_RuleT, ...] = (
    _mixed_precision,
    _on_cpu,
    _other_device,
    _torch_logs,
    _torch_log_file,
    _half_a_rank,
    _tf32("NVIDIA_TF32_OVERRIDE"),
    _tf32("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    _switch("TRITON_INTERPRET", "Triton interprets its kernels, thousands of times slower"),
    _switch("CUDA_LAUNCH_BLOCKING", "every kernel is waited for: a debugging aid, and slow"),
    _switch("PYTORCH_NO_CUDA_MEMORY_CACHING", "every tensor is asked of the driver, which is slow"),
    _switch("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "torch.load executes what a file holds", gpu=False),
    _spread("ACCELERATE_USE_DEEPSPEED", "deepspeed"),
    _spread("ACCELERATE_USE_FSDP"),
    _spread("ACCELERATE_USE_MEGATRON_LM", "megatron-core"),
    _asserts_off,
    _warnings_as_errors,
    _preloads,
    _threads,
    _allocator("PYTORCH_ALLOC_CONF"),
    _allocator("PYTORCH_CUDA_ALLOC_CONF"),
    _allocator("PYTORCH_HIP_ALLOC_CONF"),  # torch reads it in a build for CUDA too
)


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.environment",
        Fault.CONFIG,
        "what torch, accelerate, Triton and Python read",
        environment,
        cause="A variable that an earlier job, a shell's profile or another kind of node needed: "
        "bf16 from a configuration for newer boards, a debugging switch that was left on.",
        fix="Unset the named variable, or correct it as the finding says.",
    ),
)
