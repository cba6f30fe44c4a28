"""Whether processes have room to share memory in."""

from __future__ import annotations

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import torch_build
from roost.doctor.readings.machine import gib

NAME = "shared-memory"
NEEDED_BYTES = 1 * 2**30
"""What NCCL's guide gives a container (--shm-size=1g). Docker's default is 64 MiB."""


def check(facts: Facts) -> list[Finding]:
    """/dev/shm, and the memory that may be locked."""
    cards = len(torch_build.visible(facts))
    found = [*_shm(facts, cards), *_locked(facts, cards)]
    if found or facts.shm is None:
        return found or [Finding(NAME, Level.OK, "this system has no /dev/shm")]
    what = f"/dev/shm has {gib(facts.shm.free)} free of {gib(facts.shm.total)}"
    return [Finding(NAME, Level.OK, what, data={"free": facts.shm.free})]


def _shm(facts: Facts, cards: int) -> list[Finding]:
    if facts.shm is None or facts.shm.free >= NEEDED_BYTES:
        return []
    size = f"{facts.shm.free / 2**20:.0f} MiB free of {facts.shm.total / 2**20:.0f} MiB"
    small = facts.shm.total < NEEDED_BYTES
    return [
        Finding(
            NAME,
            Level.FAULT if cards > 1 else Level.WARNING,
            f"/dev/shm has {size}",
            "NCCL and vLLM's workers pass data through it: several cards fail with 'Error while "
            "creating shared memory segment' or a bus error.",
            "Start the container with --shm-size=8g or --ipc=host (Kubernetes: an emptyDir of "
            "medium Memory at /dev/shm); outside: mount -o remount,size=8G /dev/shm."
            if small
            else "Remove what ended processes have left in /dev/shm.",
            {"free": facts.shm.free},
        )
    ]


def _locked(facts: Facts, cards: int) -> list[Finding]:
    if facts.memlock is None or cards < 2 or facts.memlock >= NEEDED_BYTES:
        return []
    # Only network cards need it, so one node works without.
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"a process may lock {facts.memlock / 2**10:.0f} KiB of memory",
            "NCCL over InfiniBand or RoCE between nodes fails to register its buffers. One node "
            "does without.",
            "ulimit -l unlimited; in a container: --ulimit memlock=-1.",
        )
    ]
