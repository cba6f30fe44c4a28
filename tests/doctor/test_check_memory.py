from __future__ import annotations

from dataclasses import replace

import pytest

from roost.doctor.checks import memory
from roost.doctor.facts import Facts
from roost.doctor.findings import Level
from support.machines import GIB, hgx, laptop, linux, only, switch_pair


def container(facts: Facts, limit: int, used: int) -> Facts:
    folder = "/sys/fs/cgroup/kubepods/pod1"
    cgroup = {f"{folder}/memory.max": f"{limit}\n", f"{folder}/memory.current": f"{used}\n"}
    return replace(facts, files={**facts.files, **cgroup})


@pytest.mark.parametrize("facts", [hgx(), switch_pair(), laptop(), Facts()])
def test_enough_memory_is_well(facts: Facts) -> None:
    assert only(memory.check(facts)).level is Level.OK


def test_the_container_s_limit_counts_not_the_machine_s_memory() -> None:
    found = only(memory.check(container(laptop(), 16 * GIB, 2 * GIB)))
    assert found.level is Level.OK
    assert (
        found.what == "14.0 GiB available of 16.0 GiB (the container's; the machine has 32.0 GiB)"
    )


@pytest.mark.parametrize(("used", "level"), [(6, Level.WARNING), (8, Level.FAULT)])
def test_a_container_that_is_nearly_full_is_said(used: int, level: Level) -> None:
    found = only(memory.check(container(laptop(), 8 * GIB, used * GIB)))
    assert found.level is level
    assert "Killed" in found.means


def test_less_host_memory_than_a_card_has_is_a_warning() -> None:
    facts = replace(switch_pair(), files={**switch_pair().files, **linux(32, 32)})
    found = only(memory.check(facts))
    assert found.level is Level.WARNING
    assert found.what == "32.0 GiB of host memory beside a card of 47.4 GiB"
