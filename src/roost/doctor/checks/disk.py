"""Whether there is room for models, runs and temporary files."""

from __future__ import annotations

from roost.doctor.facts import Disk, Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings.machine import gib

NAME = "disk"
FAULT_BYTES, WARNING_BYTES = 1 * 2**30, 20 * 2**30
"""Free: less than 1 GiB does not hold the smallest run; a 7B model's weights take 15 GiB, and each
checkpoint of a full run twelve bytes a parameter besides."""


def check(facts: Facts) -> list[Finding]:
    """Each place that a run writes to."""
    found = [finding for disk in facts.disks for finding in _disk(disk)]
    if found:
        return found
    rooms = ", ".join(f"{gib(disk.free)} for {disk.what_for}" for disk in facts.disks)
    data = {disk.path: disk.free for disk in facts.disks}
    return [Finding(NAME, Level.OK, f"free: {rooms}", data=data)]


def _disk(disk: Disk) -> list[Finding]:
    if not disk.writable:
        return [
            Finding(
                NAME,
                Level.FAULT,
                f"{disk.path} ({disk.what_for}) cannot be written to",
                "What belongs there cannot be saved, so a run ends when it tries.",
                _move(disk),
            )
        ]
    if disk.free >= WARNING_BYTES:
        return []
    return [
        Finding(
            NAME,
            Level.FAULT if disk.free < FAULT_BYTES else Level.WARNING,
            f"{gib(disk.free)} free at {disk.path} ({disk.what_for})",
            "A disk that fills up ends a run at its next checkpoint or download.",
            _move(disk),
            {"free": disk.free},
        )
    ]


def _move(disk: Disk) -> str:
    ways = {
        "runs": "Free some, or set output.folder to a folder on another disk; a lower "
        "output.keep_checkpoints keeps less.",
        "models": "Free some, or set HF_HOME to a folder on another disk.",
        "temporary files": "Free some, or set TMPDIR to a folder on another disk.",
    }
    return ways[disk.what_for]
