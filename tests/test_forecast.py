"""Facts about the forecast of memory: what it counts, and what it says of a device and a host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checks.forecast import CHECKS
from app.config import ModelRequest
from app.facts.board import BoardFacts, GpuProcess, NvmlFacts
from app.facts.checkpoint import STATE, CheckpointFacts, QuantData, ShardFacts, TensorHeader
from app.facts.forecast import ForecastFacts, make_forecast
from app.facts.gpu import DeviceFacts, GpuFacts
from app.facts.host import MemoryFacts
from app.facts.projections import is_projection
from app.forecast_section import forecast_section
from app.outcome import Fault, Finding, Status
from app.plan import Plan
from app.profiles import CPU, GIB, H100, V100, Profile

MIB = 1024**2
HOST = MemoryFacts(total_bytes=64 * GIB, available_bytes=60 * GIB)
DEVICE_MEMORY, HOST_MEMORY = (check.judge for check in CHECKS)
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1}


def header(name: str, *shape: int, dtype: str = "BF16") -> TensorHeader:
    n = SIZES[dtype]
    for side in shape:
        n *= side
    return TensorHeader(name, dtype, shape, n, "model.safetensors")


def llama(
    hidden: int = 1024, layers: int = 2, vocabulary: int = 32_000, dtype: str = "BF16"
) -> list[TensorHeader]:
    """Headers of a Llama whose MLP is four times as wide as the rest."""
    found = [header("model.embed_tokens.weight", vocabulary, hidden, dtype=dtype)]
    for index in range(layers):
        at = f"model.layers.{index}"
        shapes = dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj"), (hidden, hidden))
        shapes |= dict.fromkeys(("self_attn.v_proj", "self_attn.o_proj"), (hidden, hidden))
        shapes |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (4 * hidden, hidden))
        shapes["mlp.down_proj"] = (hidden, 4 * hidden)
        found += [
            header(f"{at}.{leaf}.weight", *sides, dtype=dtype) for leaf, sides in shapes.items()
        ]
    return [*found, header("lm_head.weight", vocabulary, hidden, dtype=dtype)]


def checkpoint(tensors: list[TensorHeader], **config: Any) -> CheckpointFacts:
    known = {"model_type": "llama", "num_hidden_layers": 2, "tie_word_embeddings": False}
    return CheckpointFacts(Path("m"), config={**known, **config}, tensors=tuple(tensors))


def in_4_bits(plain: list[TensorHeader], **config: Any) -> CheckpointFacts:
    """The same with its projections as bitsandbytes saves them, scales nested."""
    found: list[TensorHeader] = []
    states: dict[str, Mapping[str, Any] | str] = {}
    for each in plain:
        if len(each.shape) != 2 or not is_projection(each.name.removesuffix(".weight")):
            found.append(each)
            continue
        n = each.shape[0] * each.shape[1]
        name, scales = each.name, -(-n // 64)
        state = f"{name}{STATE}nf4"
        states[state] = {"shape": list(each.shape), "nested_offset": 0.1}
        found += [
            header(name, n // 2, 1, dtype="U8"),
            header(f"{name}.absmax", scales, dtype="U8"),
            header(f"{name}.quant_map", 16, dtype="F32"),
            header(f"{name}.nested_absmax", -(-scales // 256), dtype="F32"),
            header(f"{name}.nested_quant_map", 256, dtype="F32"),
            header(state, 200, dtype="U8"),
        ]
    method = {"quant_method": "bitsandbytes"}
    return replace(checkpoint(found, quantization_config=method, **config), quant=QuantData(states))


def plan_for(profile: Profile = H100, **request: Any) -> Plan:
    return Plan(profile, ModelRequest(**request), Path("reports"))


def a_gpu(total: int, free: int | None, *holders: GpuProcess) -> GpuFacts:
    device = DeviceFacts(0, "NVIDIA H100", "GPU-1", (9, 0), total, free_bytes=free)
    boards = (BoardFacts(0, uuid="GPU-1", processes=holders),)
    return GpuFacts(init_error=0, n_devices=1, devices=(device,), nvml=NvmlFacts(boards=boards))


def sums(facts: ForecastFacts, *names: str) -> tuple[int, int]:
    found = [part for part in facts.parts if part.name in names]
    return sum(part.low_bytes for part in found), sum(part.high_bytes for part in found)


WEIGHTS = (
    *("packed weights", "scales", "embeddings", "head", "norms", "towers", "buffers"),
    "other weights",
)


def weights_of(found: CheckpointFacts, plan: Plan) -> tuple[int, int]:
    return sums(make_forecast(plan, found, None, HOST), *WEIGHTS)


@pytest.mark.parametrize(("profile", "width"), [(V100, 2), (H100, 2), (CPU, 4)])
def test_plain_weights_take_the_compute_dtype(profile: Profile, width: int) -> None:
    """Whatever the file holds, which here is float32."""
    tensors = llama(dtype="F32")
    n = sum(each.n_bytes // 4 for each in tensors)
    plan = plan_for(profile, load_in_4bit=False)
    assert weights_of(checkpoint(tensors), plan) == (n * width, n * width)


def test_packed_weights_take_what_they_take_in_the_file() -> None:
    """But for the state's JSON, of which one float stays."""
    found = in_4_bits(llama())
    files = sum(each.n_bytes for each in found.tensors)
    n_packed = len(found.packed)
    expected = files - 200 * n_packed + 4 * n_packed
    assert weights_of(found, plan_for()) == (expected, expected)


def test_what_is_packed_on_the_way_takes_as_much_as_what_comes_packed() -> None:
    assert weights_of(checkpoint(llama()), plan_for()) == weights_of(in_4_bits(llama()), plan_for())


def test_a_gpu_may_pack_what_a_cpu_leaves_alone() -> None:
    """Unsloth's CUDA path packs a Linear that is no projection, unless it is on its list."""
    extra = header("model.layers.0.gate.weight", 4096, 4096)
    on_gpu = make_forecast(plan_for(), checkpoint([*llama(), extra]), None, HOST)
    low, high = sums(on_gpu, "other weights")
    assert low < 0.6 * 4096 * 4096
    assert high == 2 * 4096 * 4096
    on_cpu = make_forecast(plan_for(CPU), checkpoint([*llama(), extra]), None, HOST)
    assert sums(on_cpu, "other weights") == (4 * 4096 * 4096, 4 * 4096 * 4096)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.2.mlp.up_proj.weight",  # the configuration counts two
        "mtp.layers.0.mlp.up_proj.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ],
)
def test_what_no_class_builds_is_not_counted(name: str) -> None:
    plan = plan_for()
    extra = header(name, 4096, 4096)
    assert weights_of(checkpoint([*llama(), extra]), plan) == weights_of(checkpoint(llama()), plan)


def test_shared_keys_and_values_are_not_counted() -> None:
    tensors = llama()
    plan = plan_for(load_in_4bit=False)
    sharing = checkpoint(tensors, num_kv_shared_layers=1)
    saved = weights_of(checkpoint(tensors), plan)[0] - weights_of(sharing, plan)[0]
    assert saved == 2 * 2 * 1024 * 1024  # k and v of the second layer, in 16 bits


@pytest.mark.parametrize(("tied", "least"), [(True, 0), (None, 0), (False, 2 * 32_000 * 1024)])
def test_a_head_that_may_be_tied_is_not_sure_to_take_memory(tied: bool | None, least: int) -> None:
    found = make_forecast(plan_for(), checkpoint(llama(), tie_word_embeddings=tied), None, HOST)
    assert sums(found, "head") == (least, 2 * 32_000 * 1024)


def test_lora_is_counted_for_the_parts_that_are_asked_for() -> None:
    """Rank times the sides of each projection, float32, with as much for gradients."""
    both = make_forecast(plan_for(lora_r=8), checkpoint(llama()), None, HOST)
    attention = 2 * 4 * 8 * (1024 + 1024) * 4
    mlp = 2 * 3 * 8 * (4096 + 1024) * 4
    assert sums(both, "LoRA") == (attention + mlp, attention + mlp)
    assert sums(both, "gradients") == sums(both, "LoRA")
    plan = plan_for(lora_r=8, finetune_mlp_modules=False)
    one = make_forecast(plan, in_4_bits(llama()), None, HOST)
    assert sums(one, "LoRA") == (attention, attention)


def test_a_longer_sequence_never_needs_less() -> None:
    def high(tokens: int) -> int:
        plan = plan_for(max_seq_length=tokens)
        return make_forecast(plan, checkpoint(llama()), None, HOST).high("device")

    found = [high(tokens) for tokens in (32, 511, 1024, 4096, 65_536)]
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_hidden_states_move_to_the_host_from_512_tokens_on() -> None:
    def moved(profile: Profile, **request: Any) -> int:
        found = make_forecast(plan_for(profile, **request), checkpoint(llama()), None, HOST)
        return sums(found, "moved hidden states")[1]

    assert moved(H100, max_seq_length=512) > 0
    assert moved(H100, max_seq_length=511) == 0
    assert moved(H100, max_seq_length=512, use_gradient_checkpointing=True) == 0
    assert moved(CPU, max_seq_length=512) == 0


def test_without_checkpointing_every_layer_is_held_beside_the_logits() -> None:
    kept = make_forecast(
        plan_for(use_gradient_checkpointing=False), checkpoint(llama()), None, HOST
    )
    one = make_forecast(plan_for(), checkpoint(llama()), None, HOST)
    assert sums(kept, "one layer")[1] == 2 * sums(one, "one layer")[1]
    assert kept.high("device") > one.high("device")


def test_plain_attention_keeps_a_score_for_each_pair_of_tokens() -> None:
    """Gemma 3n is run so; others are not."""
    found = checkpoint(llama(), model_type="gemma3n", num_attention_heads=8)
    low, _ = sums(make_forecast(plan_for(), found, None, HOST), "attention scores")
    assert low == 8 * 4096 * 4096 * 6
    fused = make_forecast(plan_for(), checkpoint(llama(), num_attention_heads=8), None, HOST)
    assert sums(fused, "attention scores") == (0, 0)


def judged(
    found: CheckpointFacts,
    gpu: GpuFacts | None,
    memory: MemoryFacts = HOST,
    *,
    profile: Profile = H100,
    **request: Any,
) -> tuple[Finding, Finding]:
    plan = plan_for(profile, **request)
    facts = make_forecast(plan, found, gpu, memory)
    return DEVICE_MEMORY(facts, plan), HOST_MEMORY(facts, plan)


def test_a_model_that_fits_passes_with_figures() -> None:
    device, host = judged(checkpoint(llama()), a_gpu(80 * GIB, 79 * GIB))
    assert device.status is Status.PASS
    assert host.status is Status.PASS
    assert "79.0 GiB free of 80.0 GiB" in device.reason


def test_weights_beyond_the_card_need_another_card() -> None:
    found = checkpoint(llama(hidden=16_384, layers=80), num_hidden_layers=80)
    gpu = a_gpu(80 * GIB, 79 * GIB)
    device, _ = judged(found, gpu, load_in_4bit=False)
    assert device.status is Status.FAIL
    assert device.fault is None
    assert CHECKS[0].fault is Fault.HARDWARE_MISMATCH
    assert "BOOT_LOAD_IN_4BIT=true" in device.next_step
    assert "BOOT_LOAD_IN_4BIT" not in judged(found, gpu)[0].next_step


def test_the_same_weights_in_4_bits_may_fit() -> None:
    """34 billion parameters: 64 GiB in 16 bits, 17 in 4."""
    found = checkpoint(llama(hidden=8192, layers=32), num_hidden_layers=32)
    gpu = a_gpu(40 * GIB, 39 * GIB)
    assert judged(found, gpu, load_in_4bit=False)[0].status is Status.FAIL
    assert judged(found, gpu)[0].status is not Status.FAIL


def test_memory_that_others_hold_comes_back() -> None:
    found = checkpoint(llama(hidden=8192, layers=32), num_hidden_layers=32)
    other = (GpuProcess(7, 5 * GIB), GpuProcess(8, 60 * GIB, "python"))
    device, _ = judged(found, a_gpu(80 * GIB, 10 * GIB, *other))
    assert device.status is Status.FAIL
    assert device.fault is Fault.TEMPORARY
    assert "process 8 (python), process 7" in device.reason


def test_a_card_that_nobody_else_uses_gets_no_emptier() -> None:
    """The weights fit the card and not what a context leaves of it, whoever waits."""
    found = checkpoint(llama(hidden=8192, layers=10), num_hidden_layers=10)
    sure = make_forecast(plan_for(load_in_4bit=False), found, None, HOST).sure("device")
    gpu = a_gpu(sure + 100 * MIB, sure - 300 * MIB)
    device, _ = judged(found, gpu, load_in_4bit=False)
    assert device.status is Status.FAIL
    assert device.fault is None
    assert "more memory" in device.next_step


@pytest.mark.parametrize("profile", [H100, CPU])
def test_experts_are_packed_or_not(profile: Profile) -> None:
    """transformers 5 may merge them into one tensor, which is no Linear."""
    expert = header("model.layers.0.mlp.experts.3.up_proj.weight", 4096, 4096)
    facts = make_forecast(plan_for(profile), checkpoint([*llama(), expert]), None, HOST)
    width = 4 if profile is CPU else 2
    low, high = sums(facts, "other weights")
    assert low < 0.6 * 4096 * 4096
    assert high == width * 4096 * 4096


def test_a_tight_card_warns_and_names_a_length_that_fits() -> None:
    found, gpu = checkpoint(llama(), model_type="gemma3n", num_attention_heads=8), 3 * GIB
    device, _ = judged(found, a_gpu(80 * GIB, gpu), max_seq_length=8192)
    assert device.status is Status.WARN
    length = re.search(r"BOOT_MAX_SEQ_LENGTH=(\d+), which fits", device.next_step)
    assert length is not None
    shorter, _ = judged(found, a_gpu(80 * GIB, gpu), max_seq_length=int(length[1]))
    assert shorter.status is Status.PASS


def test_what_would_not_help_is_not_advised() -> None:
    device, _ = judged(checkpoint(llama()), a_gpu(80 * GIB, GIB), max_seq_length=4096)
    assert device.status is Status.WARN
    assert "LORA_R" not in device.next_step
    assert "4BIT" not in device.next_step
    device, _ = judged(checkpoint(llama()), a_gpu(80 * GIB, GIB), lora_r=1024)
    assert "lower BOOT_LORA_R=1024" in device.next_step


@pytest.mark.parametrize(
    "gpu", [None, GpuFacts(init_error=100), a_gpu(80 * GIB, None), GpuFacts(init_error=0)]
)
def test_a_device_that_was_not_read_is_no_pass(gpu: GpuFacts | None) -> None:
    device, _ = judged(checkpoint(llama()), gpu)
    assert device.status is Status.SKIP
    assert device.reason


@pytest.mark.parametrize(
    "broken",
    [
        replace(checkpoint(llama()), config_problem="not JSON"),
        replace(checkpoint(llama()), index_problem="no weight_map"),
        replace(checkpoint(llama()), shards=(ShardFacts("a", 3, "empty"),)),
        checkpoint([]),
    ],
)
def test_no_forecast_is_made_of_files_that_could_not_be_read(broken: CheckpointFacts) -> None:
    facts = make_forecast(plan_for(), broken, a_gpu(80 * GIB, 79 * GIB), HOST)
    assert facts.problem
    assert forecast_section(facts) is None
    for check in CHECKS:
        assert check.judge(facts, plan_for()).status is Status.SKIP


def test_weights_of_unknown_layers_are_forecast_without_training() -> None:
    found = checkpoint([header("transformer.encoder.stuff.weight", 512, 512)])
    device, _ = judged(found, a_gpu(80 * GIB, 79 * GIB))
    assert device.status is Status.PASS
    assert "nothing is said of training" in device.reason


def test_on_a_rehearsal_the_device_is_the_host() -> None:
    memory = MemoryFacts(total_bytes=8 * GIB, available_bytes=7 * GIB)
    device, host = judged(checkpoint(llama()), None, memory, profile=CPU, max_seq_length=512)
    assert device.status is Status.PASS
    assert "7.0 GiB free of 8.0 GiB" in device.reason
    assert host.status is Status.SKIP


@pytest.mark.parametrize(
    ("memory", "status"),
    [
        (MemoryFacts(total_bytes=2 * GIB, available_bytes=GIB), Status.FAIL),
        # Slowly, but it can be had.
        (MemoryFacts(total_bytes=2 * GIB, available_bytes=GIB, swap_bytes=8 * GIB), Status.WARN),
        (MemoryFacts(total_bytes=64 * GIB, available_bytes=GIB), Status.WARN),
        (MemoryFacts(64 * GIB, GIB, 2 * GIB, "/sys/fs/cgroup/memory.max"), Status.FAIL),
        (MemoryFacts(), Status.SKIP),
    ],
)
def test_a_rehearsal_fails_only_beyond_all_that_the_host_has(
    memory: MemoryFacts, status: Status
) -> None:
    """2.8 GiB in float32."""
    found = checkpoint(llama(hidden=2048, layers=8), num_hidden_layers=8)
    device, _ = judged(found, None, memory, profile=CPU, load_in_4bit=False)
    assert device.status is status


def test_pages_of_a_file_can_be_taken_back() -> None:
    """A float32 file is mapped on a CPU and never copied: it may exceed all memory."""
    found = checkpoint(llama(hidden=2048, layers=8, dtype="F32"), num_hidden_layers=8)
    memory = MemoryFacts(total_bytes=2 * GIB, available_bytes=2 * GIB)
    device, _ = judged(found, None, memory, profile=CPU, load_in_4bit=False)
    assert device.status is Status.WARN


@pytest.mark.parametrize(
    ("memory", "status"),
    [
        (MemoryFacts(64 * GIB, 60 * GIB, 256 * MIB, "/sys/fs/cgroup/memory.max"), Status.FAIL),
        (MemoryFacts(64 * GIB, 600 * MIB, 1 * GIB, "/sys/fs/cgroup/memory.max"), Status.WARN),
        (MemoryFacts(64 * GIB, None), Status.SKIP),
        (MemoryFacts(), Status.SKIP),
        (HOST, Status.PASS),
    ],
)
def test_the_host_must_hold_the_imports(memory: MemoryFacts, status: Status) -> None:
    _, host = judged(checkpoint(llama()), a_gpu(80 * GIB, 79 * GIB), memory)
    assert host.status is status
    if memory.limited_by and status is Status.FAIL:
        assert memory.limited_by in host.reason


def test_the_report_holds_every_part_that_takes_anything() -> None:
    facts = make_forecast(plan_for(), checkpoint(llama()), a_gpu(80 * GIB, 79 * GIB), HOST)
    section = forecast_section(facts)
    assert section is not None
    always = sum(p.low_bytes for p in section.parts if p.phase == "always" and p.place == "device")
    assert always == facts.sure("device")
    assert section.device.free_bytes == 79 * GIB
    assert all(part.high_bytes and part.basis for part in section.parts)


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text_config", "model_type", "hidden_size"]), inner)
    ),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    (
        *("text_config", "model_type", "hidden_size", "num_hidden_layers", "vocab_size"),
        *("num_attention_heads", "num_kv_shared_layers", "tie_word_embeddings"),
        *("num_experts_per_tok", "altup_num_inputs", "quantization_config", "thinker_config"),
    )
)
_NAMES = st.lists(
    st.sampled_from(
        (
            *("model", "layers", "0", "1", "99999999", "self_attn", "mlp", "experts", "q_proj"),
            *("weight", "bias", "lm_head", "embed_tokens", "vision_tower", "absmax", "norm", ""),
            *("quant_state", "bitsandbytes__nf4", "mtp", "talker", "é"),
        )
    ),
    max_size=7,
).map(".".join)
_HEADERS = st.builds(
    lambda name, dtype, shape: TensorHeader(name, dtype, tuple(shape), 4, "f"),
    _NAMES,
    st.sampled_from(("BF16", "F32", "U8", "F8_E4M3", "I64", "F4", "?")),
    st.lists(st.integers(0, 2**62), max_size=4),
)


@given(
    config=st.dictionaries(_KEYS, _JSON),
    tensors=st.lists(_HEADERS, max_size=8),
    states=st.dictionaries(_NAMES, st.dictionaries(st.just("shape"), _JSON) | st.text(max_size=4)),
    plan=st.sampled_from(
        [
            *(plan_for(profile) for profile in (V100, H100, CPU)),
            plan_for(load_in_4bit=False, use_gradient_checkpointing=False),
        ]
    ),
    gpu=st.sampled_from([None, a_gpu(GIB, GIB // 2), a_gpu(80 * GIB, 79 * GIB)]),
)
def test_nothing_in_a_file_makes_the_forecast_fail_to_answer(
    config: dict[str, Any],
    tensors: list[TensorHeader],
    states: dict[str, Any],
    plan: Plan,
    gpu: GpuFacts | None,
) -> None:
    found = CheckpointFacts(
        Path("m"), config=config, tensors=tuple(tensors), quant=QuantData(states)
    )
    facts = make_forecast(plan, found, gpu, HOST)
    forecast_section(facts)
    assert all(0 <= part.low_bytes <= part.high_bytes for part in facts.parts)
    for check in CHECKS:
        finding = check.judge(facts, plan)
        assert finding.reason.isprintable()
        assert len(finding.reason) < 1000
        if finding.status in (Status.FAIL, Status.WARN):
            assert finding.expected
            assert finding.actual
            assert finding.next_step


def test_a_name_from_the_driver_stays_on_one_line() -> None:
    gpu = a_gpu(GIB, GIB // 2)
    gpu = replace(gpu, devices=(replace(gpu.devices[0], name="H100\n\x1b[31m"),))
    found = checkpoint(llama(hidden=8192, layers=32), num_hidden_layers=32)
    finding, _ = judged(found, gpu)
    assert finding.status is Status.FAIL
    assert all(text.isprintable() for text in (finding.reason, finding.actual, finding.next_step))
