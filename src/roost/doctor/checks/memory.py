"""Whether the host's memory suffices, by what this process may have of it."""

from __future__ import annotations

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import torch_build
from roost.doctor.readings.machine import gib, meminfo, memory_limits

NAME = "memory"
FAULT_BYTES, WARNING_BYTES = 2**30, 4 * 2**30
"""Available. torch and the tiny model take 1 GiB; each reward worker some hundreds of MiB."""


def check(facts: Facts) -> list[Finding]:
    """What is there, what is free, and what limits it."""
    total = meminfo(facts, "MemTotal")
    available = meminfo(facts, "MemAvailable")
    if total is None or available is None:
        return [Finding(NAME, Level.OK, "this system does not say how much memory it has")]
    limits = [(limit, used) for limit, used in memory_limits(facts) if limit < total]
    allowed = min([total, *(limit for limit, _ in limits)])
    free = min([available, *(max(0, limit - used) for limit, used in limits)])
    whose = f" (the container's; the machine has {gib(total)})" if allowed < total else ""
    what = f"{gib(free)} available of {gib(allowed)}{whose}"
    data = {"available": free, "allowed": allowed, "machine": total}
    found = [*_scarce(what, free, data), *_below_cards(facts, allowed)]
    return found or [Finding(NAME, Level.OK, what, data=data)]


def _scarce(what: str, free: int, data: dict[str, int]) -> list[Finding]:
    if free >= WARNING_BYTES:
        return []
    return [
        Finding(
            NAME,
            Level.FAULT if free < FAULT_BYTES else Level.WARNING,
            what,
            "The kernel kills the process that asks for more, with no message but 'Killed'.",
            "End other processes, or raise the limit (--memory, --mem, limits.memory).",
            data,
        )
    ]


def _below_cards(facts: Facts, allowed: int) -> list[Finding]:
    cards = torch_build.visible(facts)
    largest = max((card.total_bytes for card in cards), default=0)
    if allowed >= largest:
        return []
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"{gib(allowed)} of host memory beside a card of {gib(largest)}",
            "An engine that sleeps at level 1 keeps its weights here, and so does what is "
            "offloaded; models near the card's size do not fit.",
            "Use sleep level 2 or 0 with large models, or raise the limit.",
            {"allowed": allowed, "card": largest},
        )
    ]
