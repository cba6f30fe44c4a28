from __future__ import annotations

import pytest

from roost.doctor.checks import disk
from roost.doctor.facts import Disk, Facts
from roost.doctor.findings import Level
from support.machines import GIB, hgx, levels, only

RUNS = Disk("/work", "runs", 500 * GIB, 100 * GIB)


def test_room_is_well() -> None:
    found = only(disk.check(hgx()))
    assert (found.level, found.what) == (Level.OK, "free: 900 GiB for runs")


@pytest.mark.parametrize(
    ("free", "level"), [(5 * GIB, Level.WARNING), (GIB // 2, Level.FAULT), (0, Level.FAULT)]
)
@pytest.mark.parametrize("what_for", ["runs", "models", "temporary files"])
def test_a_full_disk_is_named_with_what_it_is_for(free: int, level: Level, what_for: str) -> None:
    full = Disk("/full", what_for, 50 * GIB, free)
    found = only(disk.check(Facts(disks=(RUNS, full))))
    assert found.level is level
    assert f"free at /full ({what_for})" in found.what


def test_a_folder_that_cannot_be_written_to_is_a_fault() -> None:
    cache = Disk("/cache", "models", 50 * GIB, 40 * GIB, writable=False)
    found = disk.check(Facts(disks=(RUNS, cache)))
    assert levels(found) == [Level.FAULT]
    assert "HF_HOME" in found[0].do
