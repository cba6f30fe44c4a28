from __future__ import annotations

from dataclasses import replace

from roost.doctor.checks import gpus
from roost.doctor.facts import Answer
from roost.doctor.findings import Level
from support.machines import gpu, hgx, laptop, levels, only, switch_pair, torch_says


def test_a_machine_without_a_gpu_says_so_and_is_well() -> None:
    found = only(gpus.check(laptop()))
    assert found.level is Level.OK
    assert "no GPU found" in found.what


def test_like_cards_are_counted_with_the_memory_that_a_process_sees() -> None:
    found = only(gpus.check(hgx()))
    assert found.what == "4 x NVIDIA H100 80GB HBM3, 79.2 GiB visible"
    assert len(found.data["gpus"]) == 4


def test_hidden_cards_are_named() -> None:
    card = gpu(0, "NVIDIA RTX A6000", 47.41, [8, 6], "0000:03:00.0")
    env = {"CUDA_VISIBLE_DEVICES": "1"}
    found = gpus.check(replace(switch_pair(), env=env, torch=torch_says(card)))
    assert levels(found) == [Level.OK, Level.WARNING]
    assert found[1].what == "CUDA_VISIBLE_DEVICES=1 shows 1 of 2 cards"


def test_unlike_cards_are_held_to_the_smallest() -> None:
    cards = (
        gpu(0, "NVIDIA RTX A6000", 47.41, [8, 6], "0000:03:00.0"),
        gpu(1, "NVIDIA GeForce RTX 3090", 23.58, [8, 6], "0000:04:00.0"),
    )
    found = gpus.check(replace(switch_pair(), torch=torch_says(*cards)))
    assert levels(found) == [Level.OK, Level.WARNING]
    assert "NVIDIA GeForce RTX 3090, 23.6 GiB" in found[1].means


def test_memory_that_another_process_holds_is_named_by_card() -> None:
    rows = switch_pair().smi_gpus.text.replace("49140 MiB, 4 MiB", "49140 MiB, 38211 MiB", 1)
    found = gpus.check(replace(switch_pair(), smi_gpus=Answer("nvidia-smi", rows)))
    assert levels(found) == [Level.OK, Level.WARNING]
    assert "(GPU 0: 37.3 GiB)" in found[1].what
