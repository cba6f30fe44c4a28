from __future__ import annotations

from dataclasses import replace

import pytest

from roost.doctor.checks import numa
from roost.doctor.facts import Facts
from roost.doctor.findings import Level
from support.machines import hgx, laptop, only, switch_pair


def with_files(**changes: str) -> Facts:
    return replace(hgx(), files={**hgx().files, **changes})


@pytest.mark.parametrize("facts", [switch_pair(), laptop()])
def test_one_node_is_well(facts: Facts) -> None:
    assert only(numa.check(facts)).level is Level.OK


def test_the_places_of_cards_are_told() -> None:
    found = only(numa.check(hgx()))
    assert found.level is Level.OK
    assert found.what == "2 NUMA nodes; cards: 2 on node 0, 2 on node 1"


def test_a_machine_that_does_not_tell_is_a_warning() -> None:
    unknown = {f"/sys/bus/pci/devices/{card}/numa_node": "-1\n" for card in hgx().pci}
    found = only(numa.check(with_files(**unknown)))
    assert found.level is Level.WARNING
    assert "near which CPUs 4 cards are" in found.what
    assert "BIOS" in found.do


def test_a_process_bound_to_the_other_socket_is_warned() -> None:
    status = "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7,16-23\n"
    found = only(numa.check(with_files(**{"/proc/self/status": status})))
    assert found.level is Level.WARNING
    assert "CPUs 0-7,16-23, none of which is near 2 of 4 cards" in found.what
    assert found.data["far"] == ["0000:9a:00.0", "0000:ab:00.0"]
