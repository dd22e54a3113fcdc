"""The precision contract over hand-made censuses: total over dtypes, never vague about names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checks import precision
from app.checks._contract import RULES, expects_forced_float32, offenders
from app.facts.census import PlainLinear, TensorFacts
from app.outcome import Severity, Status
from app.profiles import CPU, H100, PROFILES, V100, Profile
from tests.censuses import broken, healthy, layer, plan_for, state_of, tensor


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_healthy_census_passes_on_every_profile(profile: Profile) -> None:
    census, plan = healthy(profile), plan_for(profile)
    assert [check.judge(census, plan).status for check in precision.CHECKS] == [
        Status.PASS for _ in precision.CHECKS
    ]
    section = precision.section([census, census], plan)
    assert section.offenders == []
    assert section.observed["load"].dtypes["norm"] == {"float32": 1}
    assert section.observed["adapter"].n_packed_layers == 1


def test_every_rule_is_asked_by_one_check() -> None:
    asked = {check.id for check in precision.CHECKS}
    assert {f"precision.{rule.__name__}" for rule in RULES} == asked - {"precision.config_dtypes"}


DTYPES = st.sampled_from(
    ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "int64", "bool", "complex64"]
)
TENSORS = st.builds(
    TensorFacts,
    name=st.text("abcdefgh.", min_size=1, max_size=12),
    kind=st.sampled_from(["parameter", "buffer", "quant_state"]),
    category=st.sampled_from(["quant_state", "lora", "norm", "embedding", "other"]),
    dtype=DTYPES,
    device=st.sampled_from(["cuda:0", "cuda:1", "cpu", "meta"]),
    numel=st.integers(0, 9),
    persistent=st.booleans(),
)


@given(
    profile=st.sampled_from([V100, H100, CPU]),
    found=st.lists(TENSORS, min_size=1, max_size=8, unique_by=lambda each: each.name),
)
def test_a_forbidden_dtype_anywhere_is_always_caught_by_name(
    profile: Profile, found: list[TensorFacts]
) -> None:
    plan = plan_for(profile)
    census = replace(healthy(profile), tensors=tuple(found))
    named = {each.name for each in offenders(census, plan)}
    forbidden = {each.name for each in found if each.dtype in profile.forbidden_dtypes}
    assert forbidden <= named
    odd = {each.name for each in found if each.dtype.startswith("float8")}
    assert odd <= named
    # And what blocks is what the section counts.
    section = precision.section([census], plan)
    assert bool(broken(census, plan)) == bool(section.n_offenders)


@given(profile=st.sampled_from([V100, H100]), unpacked=DTYPES, computed=DTYPES)
def test_a_packed_layer_computes_in_the_profiles_type_or_is_named(
    profile: Profile, unpacked: str, computed: str
) -> None:
    state = state_of(profile, dtype=unpacked)
    census = replace(
        healthy(profile), packed=(layer(profile, state=state, compute_dtype=computed),)
    )
    right = unpacked == computed == profile.compute_dtype
    assert ("precision.quant_dtypes" in broken(census, plan_for(profile))) is not right


def test_float32_only_is_not_the_wanted_type() -> None:
    census = replace(healthy(H100), packed=(), fates=(), checkpoint_packs=False)
    only = tuple(each for each in census.tensors if each.dtype != "bfloat16")
    found = broken(replace(census, tensors=only), plan_for(H100, load_in_4bit=False))
    assert list(found) == ["precision.wanted_dtype"]


def test_a_lora_matrix_in_16_bits_is_named() -> None:
    census = healthy(H100)
    low = tensor(H100, "x.lora_B.weight", "bfloat16", category="lora")
    found = broken(replace(census, tensors=(*census.tensors, low)), plan_for(H100))
    assert found == {"precision.lora_dtypes": "1 lora: x.lora_B.weight (bfloat16)"}


@pytest.mark.parametrize("device", ["meta", "cpu", "cuda:1"])
def test_a_tensor_elsewhere_is_named(device: str) -> None:
    census = healthy(V100)
    away = tensor(V100, "a.weight", "float16", device=device)
    found = broken(replace(census, tensors=(*census.tensors, away)), plan_for(V100))
    assert found == {"precision.devices": f"1 device: a.weight ({device})"}


@pytest.mark.parametrize(
    ("device_map", "fine"),
    [
        ({"": "0"}, True),
        ({}, True),
        ({"a": "0", "b": "1"}, False),
        ({"a": "0", "b": "disk"}, False),
        ({"": "cpu"}, False),
    ],
)
def test_a_device_map_names_one_device(device_map: dict[str, str], *, fine: bool) -> None:
    found = broken(replace(healthy(V100), device_map=device_map), plan_for(V100))
    assert (list(found) == []) is fine


@pytest.mark.parametrize(
    ("families", "profile", "expected"),
    [
        (("gemma3n", "gemma3n_text"), V100, True),
        (("gemma3", "gemma3_text"), V100, True),
        (("gemma3_text",), V100, False),
        (("llama",), V100, False),
        (("gemma3n",), H100, False),
        (("gemma3n",), CPU, False),
        ((), V100, False),
    ],
)
def test_unsloths_float32_path_is_for_its_families_in_float16(
    families: tuple[str, ...], profile: Profile, *, expected: bool
) -> None:
    census = replace(healthy(profile), families=families)
    assert expects_forced_float32(census, plan_for(profile)) is expected
    for forced in (True, False, None):
        found = broken(replace(census, forced_float32=forced), plan_for(profile))
        assert ("precision.forced_float32" in found) is (bool(forced) != expected)


def test_configurations_of_another_type_only_warn() -> None:
    check = next(each for each in precision.CHECKS if each.id == "precision.config_dtypes")
    assert check.severity is Severity.WARNING
    census = replace(healthy(V100), config_dtypes={"config": "bfloat16"})
    found = check.judge(census, plan_for(V100))
    assert (found.status, found.actual) == (Status.WARN, "config (bfloat16)")
    assert offenders(census, plan_for(V100)) == []


def test_a_default_dtype_that_a_library_left_behind_warns() -> None:
    check = next(each for each in precision.CHECKS if each.id == "precision.config_dtypes")
    census = replace(healthy(V100), default_dtype="float16")
    found = check.judge(census, plan_for(V100))
    assert (found.status, found.actual) == (Status.WARN, "torch.get_default_dtype() (float16)")


def test_the_section_shows_the_first_ten_and_counts_all() -> None:
    census = healthy(V100)
    many = tuple(tensor(V100, f"w{index}", "bfloat16") for index in range(25))
    census = replace(census, tensors=(*census.tensors, *many))
    section = precision.section([census, census], plan_for(V100))
    assert len(section.offenders) == 10
    assert section.n_offenders == {"other": 25}
    reason = broken(census, plan_for(V100))["precision.forbidden_dtypes"]
    assert reason == "25 other: w0 (bfloat16), w1 (bfloat16), w2 (bfloat16) and 22 more"


@pytest.mark.parametrize(
    ("changes", "actual"),
    [
        ({"shape": (2, 8)}, "shape (2, 8) in the quant state"),
        ({"blocksize": 7}, "7"),
        ({"n_absmax": 2}, "2 scales"),
        ({"n_absmax": 1, "nested_blocksize": 256, "n_nested_absmax": 0}, "0 nested scales"),
        ({"nested_blocksize": 0x101}, "257"),
        ({"odd_maps": ("another table than nf4's",)}, "another table than nf4's"),
    ],
)
def test_a_quant_state_whose_parts_disagree_is_named(
    changes: dict[str, object], actual: str
) -> None:
    good = layer(CPU, shape=(4, 4), state=state_of(CPU, n_absmax=1, nested_blocksize=256))
    assert good.state is not None
    assert good.state.problem(good.shape) == ("", "")
    assert state_of(CPU, **changes).problem(good.shape)[1] == actual
    odd = replace(healthy(CPU), packed=(replace(good, state=state_of(CPU, **changes)),))
    assert actual in broken(odd, plan_for(CPU))["precision.quant_states"]


def test_a_norm_or_linear_without_a_weight_is_named() -> None:
    bare = replace(
        healthy(CPU),
        tensors=(*healthy(CPU).tensors, tensor(CPU, "n", "float32", category="norm", numel=0)),
        plain=(PlainLinear("lm_head", "none", projection=False, skipped=True),),
    )
    said = broken(bare, plan_for(CPU))["precision.has_parameters"]
    assert "n (none)" in said
    assert "lm_head (none)" in said
