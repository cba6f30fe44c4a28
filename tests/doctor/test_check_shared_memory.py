from __future__ import annotations

from dataclasses import replace

import pytest

from roost.doctor.checks import shared_memory
from roost.doctor.facts import Disk, Facts
from roost.doctor.findings import Level
from support.machines import GIB, hgx, laptop, only, switch_pair

DOCKER = Disk("/dev/shm", "shared memory", 64 * 2**20, 64 * 2**20)


@pytest.mark.parametrize("facts", [hgx(), laptop(), replace(laptop(), shm=None)])
def test_room_and_no_shared_memory_at_all_are_well(facts: Facts) -> None:
    assert only(shared_memory.check(facts)).level is Level.OK


def test_docker_s_default_is_a_fault_with_several_cards() -> None:
    found = only(shared_memory.check(replace(switch_pair(), shm=DOCKER)))
    assert found.level is Level.FAULT
    assert found.what == "/dev/shm has 64 MiB free of 64 MiB"
    assert "--shm-size" in found.do


def test_it_is_a_warning_without_cards() -> None:
    assert only(shared_memory.check(replace(laptop(), shm=DOCKER))).level is Level.WARNING


def test_a_filled_one_is_to_be_cleared_not_enlarged() -> None:
    filled = Disk("/dev/shm", "shared memory", 64 * GIB, 1000)
    found = only(shared_memory.check(replace(switch_pair(), shm=filled)))
    assert found.do == "Remove what ended processes have left in /dev/shm."


def test_a_low_lock_limit_matters_to_several_cards() -> None:
    found = only(shared_memory.check(replace(hgx(), memlock=64 * 2**10)))
    assert found.level is Level.WARNING
    assert "64 KiB" in found.what
    assert only(shared_memory.check(replace(laptop(), memlock=2**16))).level is Level.OK
