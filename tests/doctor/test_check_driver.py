from __future__ import annotations

from dataclasses import replace

import pytest

from roost.doctor.checks import driver
from roost.doctor.facts import Answer, Facts
from roost.doctor.findings import Level
from support.machines import gpu, hgx, laptop, only, said, switch_pair, torch_says

A6000 = gpu(0, "NVIDIA RTX A6000", 47.41, [8, 6], "0000:03:00.0")


def header(cuda: str) -> Answer:
    return Answer("nvidia-smi", switch_pair().smi.text.replace("CUDA Version: 13.0", cuda))


@pytest.mark.parametrize("facts", [hgx(), switch_pair(), laptop()])
def test_what_fits_is_well(facts: Facts) -> None:
    assert only(driver.check(facts)).level is Level.OK


def test_a_torch_that_does_not_answer_is_a_fault() -> None:
    silent = said("torch", problem="did not answer within 120 s and was killed", late=True)
    found = only(driver.check(replace(hgx(), torch=silent)))
    assert found.level is Level.FAULT
    assert found.what == "torch did not answer within 120 s and was killed"


def test_a_driver_that_was_updated_under_way_needs_a_reboot() -> None:
    smi = Answer(
        "nvidia-smi",
        "Failed to initialize NVML: Driver/library version mismatch\n"
        "NVML library version: 580.126\n",
        "ended with exit code 18: NVML library version: 580.126",
    )
    version = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.119.02  Release Build\n"
        "GCC version:  gcc version 15.2.1\n"
    )
    files = {**switch_pair().files, "/proc/driver/nvidia/version": version}
    facts = replace(switch_pair(), smi=smi, smi_gpus=smi, torch=torch_says(), files=files)
    found = only(driver.check(facts))
    assert found.what == "the loaded driver (580.119.02) is not the installed one (580.126)"
    assert found.do == "Reboot."


def test_a_hanging_nvidia_smi_is_a_fault() -> None:
    smi = Answer("nvidia-smi", "", "did not answer within 20 s and was killed", late=True)
    found = only(driver.check(replace(hgx(), smi=smi)))
    assert found.level is Level.FAULT
    assert "did not answer within 20 s" in found.what


@pytest.mark.parametrize(
    "smi",
    [
        Answer("nvidia-smi", problem="is not installed", missing=True),
        Answer(
            "nvidia-smi",
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
            "sure that the latest NVIDIA driver is installed and running.\n",
            "ended with exit code 9: NVIDIA-SMI has failed because it couldn't communicate",
        ),
    ],
)
def test_cards_without_a_driver_are_a_fault(smi: Answer) -> None:
    facts = replace(switch_pair(), smi=smi, smi_gpus=smi, torch=torch_says())
    found = only(driver.check(facts))
    assert found.level is Level.FAULT
    assert found.what.startswith("2 NVIDIA devices, but nvidia-smi")


def test_a_cpu_build_of_torch_beside_gpus_is_a_fault() -> None:
    facts = replace(hgx(), torch=torch_says(version="2.13.0+cpu", cuda=None))
    found = only(driver.check(facts))
    assert found.level is Level.FAULT
    assert "CPU build" in found.what
    assert "CUDA 13.0 or older" in found.do


def test_a_driver_of_an_older_major_cuda_is_a_fault() -> None:
    facts = replace(
        switch_pair(),
        smi=header("CUDA Version: 12.4"),
        torch=torch_says(error="The NVIDIA driver on your system is too old (found version 12040)"),
    )
    found = only(driver.check(facts))
    assert found.level is Level.FAULT
    assert "up to 12.4" in found.what
    assert "needs 13.x" in found.what


def test_a_driver_of_an_older_minor_cuda_is_a_warning() -> None:
    torch = torch_says(A6000, version="2.9.1+cu128", cuda="12.8")
    facts = replace(switch_pair(), smi=header("CUDA Version: 12.4"), torch=torch)
    found = only(driver.check(facts))
    assert found.level is Level.WARNING
    assert "for CUDA 12.8, the driver for 12.4" in found.what


def test_a_newer_driver_is_well() -> None:
    torch = torch_says(A6000, version="2.9.1+cu128", cuda="12.8")
    assert only(driver.check(replace(switch_pair(), torch=torch))).level is Level.OK


def test_a_torch_that_sees_nothing_is_quoted() -> None:
    facts = replace(hgx(), torch=torch_says(error="Error 802: system not yet initialized"))
    found = only(driver.check(facts))
    assert found.level is Level.FAULT
    assert "Error 802: system not yet initialized" in found.what
    assert "fabricmanager" in found.do


def test_cards_hidden_on_purpose_are_no_fault() -> None:
    facts = replace(hgx(), torch=torch_says(), env={"CUDA_VISIBLE_DEVICES": ""})
    assert only(driver.check(facts)).level is Level.OK


def test_a_card_that_torch_has_no_kernels_for_is_a_fault() -> None:
    card = gpu(0, "NVIDIA GeForce RTX 5090", 31.4, [12, 0], "0000:03:00.0")
    old = ["sm_50", "sm_80", "sm_86", "sm_90"]
    found = only(driver.check(replace(switch_pair(), torch=torch_says(card, archs=old))))
    assert found.level is Level.FAULT
    assert "no kernels for NVIDIA GeForce RTX 5090 (sm_120)" in found.what


@pytest.mark.parametrize("archs", [["sm_80"], ["compute_75"], ["sm_86"]])
def test_binaries_serve_later_minors_and_ptx_serves_all_later_cards(archs: list[str]) -> None:
    facts = replace(switch_pair(), torch=torch_says(A6000, archs=archs))
    assert only(driver.check(facts)).level is Level.OK


def test_binaries_do_not_serve_another_major() -> None:
    facts = replace(switch_pair(), torch=torch_says(A6000, archs=["sm_75", "sm_90"]))
    assert only(driver.check(facts)).level is Level.FAULT
