from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from roost.doctor.ask import Question, ask
from roost.doctor.checks import peers
from roost.doctor.facts import Answer, Facts
from roost.doctor.findings import Level
from support.machines import gpu, hgx, laptop, only, pairs, said, switch_pair, torch_says

WHO = "the copies between cards"


def measured(facts: Facts, *lines: dict[str, Any], **how: Any) -> Facts:
    return replace(facts, peers=said(WHO, *lines, **how))


@pytest.mark.parametrize("facts", [hgx(), switch_pair(), laptop()])
def test_fast_pairs_and_no_pairs_are_well(facts: Facts) -> None:
    assert only(peers.check(facts)).level is Level.OK


def test_the_figures_of_all_pairs_are_there_for_programs() -> None:
    found = only(peers.check(hgx()))
    assert found.what == "every pair copies directly, 131 to 131 GB/s (NV6)"
    assert len(found.data["pairs"]) == 12


def test_redirected_copies_are_a_fault() -> None:
    """The rates of two A6000 with the IOMMU on, from github.com/stas00/ml-engineering/issues/1."""
    lines = pairs(2, access=True, gbps=2.6)
    lines[1]["gbps"] = 2.12
    found = only(peers.check(measured(switch_pair(), *lines)))
    assert found.level is Level.FAULT
    assert "GPU 1 to 0 has 2.1 of 32 GB/s" in found.what


def test_half_rate_is_a_warning() -> None:
    found = only(peers.check(measured(switch_pair(), *pairs(2, access=True, gbps=12.9))))
    assert found.level is Level.WARNING


def test_nvlink_at_the_rate_of_pcie_is_a_fault() -> None:
    found = only(peers.check(measured(hgx(), *pairs(4, access=True, gbps=20.0))))
    assert found.level is Level.FAULT
    assert "20.0 of 84 GB/s" in found.what


def test_wrong_contents_are_a_fault_and_name_the_pair() -> None:
    lines = pairs(2, access=True, gbps=25.0)
    lines[0]["right"] = False
    found = only(peers.check(measured(switch_pair(), *lines)))
    assert found.level is Level.FAULT
    assert "wrong contents: GPU 0 to 1" in found.what


def test_cards_that_the_driver_bars_are_a_warning_with_its_reason() -> None:
    table = Answer("nvidia-smi", switch_pair().smi_peers.text.replace("OK\t", "GNS\t"))
    barred = measured(replace(switch_pair(), smi_peers=table), *pairs(2, access=False, gbps=13.2))
    found = only(peers.check(barred))
    assert found.level is Level.WARNING
    assert "the driver does not offer it for this card; 13.2 GB/s" in found.what
    assert found.do.startswith("Nothing")


def test_a_copy_that_hangs_is_named() -> None:
    problem = "did not answer within 60 s and was killed"
    begun = {"from": 1, "to": 0, "access": True}
    lines = (*pairs(2, access=True, gbps=25.0)[:1], begun)
    found = only(peers.check(measured(switch_pair(), *lines, problem=problem, late=True)))
    assert found.level is Level.FAULT
    assert found.what == f"{WHO} {problem} at GPU 1 to 0"


def test_cards_are_matched_to_the_driver_s_numbers_by_address() -> None:
    """With CUDA_VISIBLE_DEVICES=3,2, torch's card 0 is the driver's card 3."""
    addresses = list(reversed(hgx().pci))[:2]
    cards = [gpu(i, "NVIDIA H100 80GB HBM3", 79.18, [9, 0], a) for i, a in enumerate(addresses)]
    topology = hgx().smi_topology.text.replace("GPU3\tNV6\tNV6\tNV6\t", "GPU3\tNV6\tNV6\tPIX\t")
    facts = replace(
        measured(hgx(), *pairs(2, access=True, gbps=40.0)),
        torch=torch_says(*cards),
        smi_topology=Answer("nvidia-smi", topology),
    )
    # 3 to 2 is PCIe here, where 40 GB/s is well; 2 to 3 is still NVLink, where it is not.
    found = only(peers.check(facts))
    assert found.level is Level.WARNING
    assert found.data["pairs"] == [
        {"from": 1, "to": 0, "access": True, "right": True, "gbps": 40.0}
    ]


def test_the_copies_themselves_say_what_the_check_reads() -> None:
    """Between two tensors of the CPU, as there may be no cards: the same pairs and lines."""
    command = [sys.executable, "-m", "roost.doctor.probes.peers", "cpu", "2", "4"]
    path = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    answer = ask(Question(WHO, command, 120.0, path))
    assert answer.problem == ""
    begun, done = answer.said()[:2]
    assert begun == {"from": 0, "to": 1, "access": True}
    assert done["right"] is True
    # Whatever this CPU's rate is, it is judged: on a link without a known rate it is well.
    unknown = replace(switch_pair(), peers=answer, smi_gpus=Answer("nvidia-smi"))
    found = only(peers.check(replace(unknown, smi_topology=Answer("nvidia-smi"))))
    assert found.level is Level.OK
    assert [(pair["from"], pair["to"]) for pair in found.data["pairs"]] == [(0, 1), (1, 0)]
