from __future__ import annotations

from dataclasses import replace

import pytest

from roost.doctor.checks import acs
from roost.doctor.facts import Answer, Facts
from roost.doctor.findings import Level
from support.machines import captured, hgx, laptop, only, switch_pair


def with_lspci(name: str, **changes: str) -> Facts:
    files = {**switch_pair().files, **changes}
    return replace(switch_pair(), lspci=Answer("lspci", captured("switch_pair", name)), files=files)


@pytest.mark.parametrize("facts", [switch_pair(), hgx(), laptop()])
def test_switches_that_redirect_nothing_and_no_switch_are_well(facts: Facts) -> None:
    """A root port with ACS on is among them."""
    assert only(acs.check(facts)).level is Level.OK


def test_a_redirecting_switch_above_two_cards_is_a_fault() -> None:
    found = only(acs.check(with_lspci("lspci-acs")))
    assert found.level is Level.FAULT
    assert found.data["bridges"] == ["0000:02:08.0", "0000:02:10.0"]
    assert "setpci -s 0000:02:08.0 ECAP_ACS+0x6.w=0000" in found.do


def test_beside_nvlink_it_is_a_warning() -> None:
    topology = Answer("nvidia-smi", switch_pair().smi_topology.text.replace("PIX", "NV4"))
    found = only(acs.check(replace(with_lspci("lspci-acs"), smi_topology=topology)))
    assert found.level is Level.WARNING


def test_in_a_virtual_machine_acs_is_left_alone() -> None:
    facts = with_lspci("lspci-acs", **{"/proc/cpuinfo": "flags\t\t: fpu hypervisor\n"})
    assert only(acs.check(facts)).level is Level.OK


def test_without_root_it_says_that_it_could_not_look() -> None:
    found = only(acs.check(with_lspci("lspci-user")))
    assert found.level is Level.WARNING
    assert "to root alone" in found.what


def test_without_lspci_it_says_what_to_install() -> None:
    missing = Answer("lspci", problem="is not installed", missing=True)
    found = only(acs.check(replace(switch_pair(), lspci=missing)))
    assert found.level is Level.WARNING
    assert "pciutils" in found.do
