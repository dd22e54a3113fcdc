"""The table of the driver's error numbers, against NVIDIA's own lists and in what findings say."""

from __future__ import annotations

import pynvml
import pytest

from app.facts.driver_errors import NVML, cuda_error, nvml_error, start_error
from app.outcome import Fault, Status
from tests.gpus import judge, refused, with_device, with_nvml

NUMBERS = [number for number in range(-5, 1101) if number]


def test_every_number_of_cudas_own_list_is_in_the_table_by_its_name() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    numbers = {int(entry): entry.name for entry in driver.CUresult if int(entry)}
    assert len(numbers) > 100
    assert {number: cuda_error(number).name for number in numbers} == numbers


def test_every_number_of_nvml_is_in_the_table_by_its_name() -> None:
    numbers = {
        value: name
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_") and isinstance(value, int)
    }
    assert len(numbers) > 25
    assert {number: name for number, (name, _) in NVML.items()} == numbers


def test_every_number_leads_to_a_name_a_fault_and_a_step() -> None:
    for number in NUMBERS:
        for meaning in (cuda_error(number), start_error(number), nvml_error(number)):
            assert meaning.told.startswith(f"{number} ")
            assert len(meaning.told) > len(str(number)) + 5
            assert meaning.step
            assert isinstance(meaning.fault, Fault)


def test_an_unknown_number_is_the_nodes_and_told() -> None:
    assert cuda_error(12345).fault is nvml_error(77).fault is Fault.NODE_UNFIT
    assert "12345" in cuda_error(12345).told


def test_a_call_of_ours_is_never_the_one_that_was_wrong() -> None:
    """At the start INTERNAL stands for a broken image alone; in a job it may be a bug."""
    assert (start_error(400).fault, cuda_error(400).fault) == (Fault.NODE_UNFIT, Fault.INTERNAL)
    assert start_error(34).fault is Fault.INTERNAL


def test_whatever_the_driver_answers_there_is_a_finding_with_its_number() -> None:
    """`judge` asserts that each one that blocks has expected, actual and next step."""
    for number in NUMBERS:
        start = judge(refused(number))["gpu.cuda_init"]
        late = judge(with_device(context_error=number, free_bytes=None))["gpu.context"]
        nvml = judge(with_nvml(init_error=number, boards=(), n_devices=None))["gpu.nvml"]
        assert start.status is late.status is Status.FAIL, number
        assert nvml.status is (Status.WARN if number in (12, 13) else Status.FAIL), number
        for found in (start, late, nvml):
            assert str(number) in found.reason
