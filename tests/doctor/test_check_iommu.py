from __future__ import annotations

from dataclasses import replace

import pytest

from roost.doctor.checks import iommu
from roost.doctor.facts import Facts
from roost.doctor.findings import Level
from support.machines import hgx, laptop, only, switch_pair

CMDLINE = "BOOT_IMAGE=/vmlinuz-6.8.0-79-generic root=UUID=0d0e ro "


def grouped(facts: Facts, kind: str, cmdline: str = CMDLINE) -> Facts:
    groups = {f"/sys/bus/pci/devices/{card}/iommu_group/type": f"{kind}\n" for card in facts.pci}
    return replace(facts, files={**facts.files, **groups, "/proc/cmdline": cmdline})


@pytest.mark.parametrize("facts", [hgx(), switch_pair(), laptop()])
def test_off_passthrough_and_no_card_are_well(facts: Facts) -> None:
    assert only(iommu.check(facts)).level is Level.OK


@pytest.mark.parametrize("kind", ["DMA", "DMA-FQ"])
def test_translation_between_pcie_cards_is_a_fault(kind: str) -> None:
    found = only(iommu.check(grouped(switch_pair(), kind)))
    assert found.level is Level.FAULT
    assert found.what == "the IOMMU translates the addresses of 2 of 2 cards"
    assert "iommu=pt" in found.do


def test_translation_beside_nvlink_is_a_warning() -> None:
    assert only(iommu.check(grouped(hgx(), "DMA-FQ"))).level is Level.WARNING


def test_translation_of_a_single_card_is_well() -> None:
    one = replace(switch_pair(), pci=dict(list(switch_pair().pci.items())[:1]))
    assert only(iommu.check(grouped(one, "DMA"))).level is Level.OK


def test_a_virtual_machine_is_not_judged() -> None:
    facts = grouped(switch_pair(), "DMA")
    files = {**facts.files, "/proc/cpuinfo": "flags\t\t: fpu hypervisor avx2\n"}
    found = only(iommu.check(replace(facts, files=files)))
    assert found.level is Level.OK
    assert "virtual" in found.what


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("intel_iommu=on", Level.FAULT),
        ("", Level.FAULT),
        ("amd_iommu=on iommu=pt", Level.OK),
        ("intel_iommu=off", Level.OK),
    ],
)
def test_old_kernels_are_judged_by_their_command_line(words: str, level: Level) -> None:
    facts = switch_pair()
    folders = frozenset(f"/sys/bus/pci/devices/{card}/iommu_group" for card in facts.pci)
    files = {**facts.files, "/proc/cmdline": CMDLINE + words + "\n"}
    assert only(iommu.check(replace(facts, folders=folders, files=files))).level is level
