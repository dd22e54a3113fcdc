"""Whatever the probes may gather: no judge raises, and each that blocks says what to do."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.facts.board import BoardFacts, GpuProcess, NvmlFacts
from app.facts.gpu import DeviceFacts, GpuFacts, LibraryFile
from app.gpu_section import gpu_sections
from tests.gpus import PCI, UUID, judge

text = st.text(max_size=12)
name = text | st.sampled_from(["nvidia0", "nvidiactl", "nvidia-uvm", "dxg"])
uuid = text | st.sampled_from([UUID, UUID.replace("GPU", "MIG"), "GPU-", "MIG-", ""])
pci = st.sampled_from([PCI, "", "x"])
number = st.integers(-5, 1100) | st.integers(-(2**63), 2**63)
n_bytes = st.integers(-(2**63), 2**64)
flag = st.none() | st.booleans()
maybe = st.none() | number
values = st.text(max_size=8) | st.sampled_from(
    [
        "all",
        "void",
        "none",
        "",
        "0",
        "0,1",
        "3-0",
        "0-9999",
        UUID,
        f"MIG-{UUID}/1/0",
        "compute",
        ",",
    ]
)
variables = st.sampled_from(
    [
        *("NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
    ]
)
power = st.none() | st.floats(0, 1e6)
processes = st.builds(GpuProcess, number, st.none() | n_bytes, text)
boards = st.builds(
    BoardFacts,
    index=number,
    uuid=uuid,
    pci=pci,
    name=text,
    handle_error=st.just(0) | number,
    total_bytes=st.none() | n_bytes,
    used_bytes=st.none() | n_bytes,
    free_bytes=st.none() | n_bytes,
    processes=st.none() | st.lists(processes, max_size=3).map(tuple),
    ecc_enabled=flag,
    ecc_uncorrected=maybe,
    remap_pending=flag,
    remap_failed=flag,
    remapped_uncorrectable=maybe,
    retired_pages=maybe,
    retirement_pending=flag,
    mig_enabled=flag,
    mig_uuids=st.none() | st.lists(uuid, max_size=2).map(tuple),
    compute_mode=maybe,
    fabric_state=st.none() | st.integers(-1, 4),
    fabric_status=maybe,
    throttle=st.none() | st.integers(0, 2**64),
    power_limit_w=power,
    pcie_generation=maybe,
    pcie_width=maybe,
    pcie_width_max=maybe,
    unread=st.dictionaries(
        st.sampled_from(["throttle", "ecc_uncorrected", "remap_failed"]), number
    ),
)
devices = st.builds(
    DeviceFacts,
    index=number,
    name=text | st.sampled_from(["NVIDIA H100", "GH200\n"]),
    uuid=uuid,
    capability=st.tuples(st.integers(-1, 13), st.integers(-1, 13)) | st.just((9, 0)),
    total_bytes=n_bytes,
    free_bytes=st.none() | n_bytes,
    context_error=st.just(0) | number,
    pci=pci,
    n_multiprocessors=maybe,
    mig=st.booleans(),
    board_uuid=uuid,
    compute_mode=maybe,
)
libraries = st.builds(
    LibraryFile,
    name=text | st.sampled_from(["libcuda.so.1", "libnvidia-ml.so.1"]),
    path=text,
    kind=st.sampled_from(["driver", "stub", "compat", "image", "empty", "broken"]),
    version=text,
    fits=flag,
)
facts_of_any_kind = st.builds(
    GpuFacts,
    device_files=st.lists(name, max_size=4).map(tuple),
    libcuda=text,
    load_error=st.just("") | text,
    init_error=st.sampled_from([0, None, 100, 803, 804, 802, 999]) | number,
    call=text,
    n_devices=st.none() | st.integers(-1, 9),
    devices=st.lists(devices, max_size=3).map(tuple),
    cuda_version=maybe,
    driver=text | st.sampled_from(["580.95.05", "٣.1", "9" * 5000]),
    probe_problem=st.just("") | text,
    waited_s=st.floats(0, 1e6),
    nvml=st.builds(
        NvmlFacts,
        problem=st.just("") | text,
        init_error=st.sampled_from([0, None, 12, 18]) | number,
        call=text,
        driver=text,
        n_devices=st.none() | st.integers(-1, 9),
        boards=st.lists(boards, max_size=3).map(tuple),
    ),
    libraries=st.lists(libraries, max_size=3).map(tuple),
    asked=st.dictionaries(variables, values, max_size=3),
    architectures=st.lists(text | st.sampled_from(["sm_90", "compute_80"]), max_size=3).map(tuple),
    architectures_source=text,
    unopenable=st.dictionaries(name, number, max_size=2),
)


@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
@given(facts=facts_of_any_kind)
def test_no_facts_make_a_judge_or_the_report_raise_or_block_without_a_way_out(
    facts: GpuFacts,
) -> None:
    """`judge` asserts one line of reason, and expected, actual and next step where it blocks."""
    for found in judge(facts).values():
        for shown in (found.reason, found.expected, found.actual, found.next_step):
            assert "\n" not in shown
            assert len(shown) < 6000
        assert found.reason
    for section in gpu_sections(facts):
        section.model_dump_json()
