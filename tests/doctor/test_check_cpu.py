from __future__ import annotations

from dataclasses import replace

import pytest

from roost.doctor.checks import cpu
from roost.doctor.facts import Facts
from roost.doctor.findings import Level
from support.machines import hgx, laptop, only, switch_pair, torch_says


def quota(facts: Facts, text: str) -> Facts:
    return replace(facts, files={**facts.files, "/sys/fs/cgroup/cpu.max": text})


def cpu_torch(threads: int) -> dict[str, object]:
    return {"torch": torch_says(version="2.13.0+cpu", cuda=None, threads=threads)}


@pytest.mark.parametrize("facts", [hgx(), switch_pair(), laptop()])
def test_enough_cpus_are_well(facts: Facts) -> None:
    assert only(cpu.check(facts)).level is Level.OK


def test_a_quota_is_told() -> None:
    facts = quota(replace(laptop(), **cpu_torch(2)), "200000 100000\n")  # type: ignore[arg-type]
    found = only(cpu.check(facts))
    assert (found.level, found.what) == (Level.OK, "2 of 8 CPUs (a quota of 2)")


def test_more_threads_than_a_container_s_quota_are_a_warning() -> None:
    found = only(cpu.check(quota(laptop(), "150000 100000\n")))
    assert found.level is Level.WARNING
    assert found.what == "torch starts 8 threads on 1.5 CPUs"
    assert found.do == "export OMP_NUM_THREADS=1"


def test_one_thread_on_a_machine_without_a_gpu_is_a_warning() -> None:
    facts = replace(laptop(), env={"OMP_NUM_THREADS": "1"}, **cpu_torch(1))  # type: ignore[arg-type]
    found = only(cpu.check(facts))
    assert found.level is Level.WARNING
    assert "one thread of 8 CPUs" in found.what


def test_too_few_cpus_for_the_cards_are_a_warning() -> None:
    facts = replace(hgx(), affinity=4, torch=replace(hgx().torch, text=_four_threads()))
    found = only(cpu.check(facts))
    assert found.level is Level.WARNING
    assert found.what == "4 CPUs for 4 cards"


def _four_threads() -> str:
    return hgx().torch.text.replace('"threads": 96', '"threads": 4')
