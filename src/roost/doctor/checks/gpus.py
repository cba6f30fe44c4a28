"""Which cards there are, and how much of their memory a run can have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import nvidia, torch_build
from roost.doctor.readings.machine import gib

NAME = "gpus"
IN_USE_SHARE = 0.02
"""Of a card's memory. A display or a persistence daemon takes less than a hundredth."""


def check(facts: Facts) -> list[Finding]:
    """Cards, visible memory; hidden, unlike or occupied cards."""
    visible = torch_build.visible(facts)
    driver = nvidia.gpus(facts)
    if not visible and not driver:
        return [_none(facts)]
    return [
        _cards(visible, driver),
        *_hidden(facts, visible, driver),
        *_unlike(visible),
        *_in_use(driver),
    ]


def _none(facts: Facts) -> Finding:
    if facts.pci:
        what = f"{len(facts.pci)} NVIDIA devices on the PCI bus, none usable: see driver"
    else:
        what = "no GPU found: Roost runs on the CPU here"
    return Finding(NAME, Level.OK, what, data={"gpus": []})


def _cards(visible: Sequence[torch_build.TorchGpu], driver: Sequence[nvidia.SmiGpu]) -> Finding:
    if visible:
        counts = Counter((card.name, gib(card.total_bytes)) for card in visible)
        what = ", ".join(f"{n} x {name}, {size} visible" for (name, size), n in counts.items())
    else:
        names = Counter(card.name for card in driver)
        cards = ", ".join(f"{n} x {name}" for name, n in names.items())
        what = f"{cards}; torch uses none of them: see driver"
    data = [
        {"index": card.index, "name": card.name, "visible_bytes": card.total_bytes}
        for card in visible
    ]
    return Finding(NAME, Level.OK, what, data={"gpus": data})


def _hidden(
    facts: Facts, visible: Sequence[torch_build.TorchGpu], driver: Sequence[nvidia.SmiGpu]
) -> list[Finding]:
    setting = facts.env.get("CUDA_VISIBLE_DEVICES")
    if setting is None or len(visible) >= len(driver):
        return []
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"CUDA_VISIBLE_DEVICES={setting} shows {len(visible)} of {len(driver)} cards",
            "Runs started from this shell use only those; the rest was not examined.",
            "Unset it to use all cards: unset CUDA_VISIBLE_DEVICES",
        )
    ]


def _unlike(visible: Sequence[torch_build.TorchGpu]) -> list[Finding]:
    if len({card.name for card in visible}) < 2:
        return []
    smallest = min(visible, key=lambda card: card.total_bytes)
    return [
        Finding(
            NAME,
            Level.WARNING,
            "the cards are not alike",
            f"Cards that share a model work in step: each gets as much as the smallest "
            f"({smallest.name}, {gib(smallest.total_bytes)}) holds and waits for the slowest.",
            "Choose like cards with CUDA_VISIBLE_DEVICES, or give the odd one another task.",
        )
    ]


def _in_use(driver: Sequence[nvidia.SmiGpu]) -> list[Finding]:
    used = [
        card
        for card in driver
        if card.used_mib and card.total_mib and card.used_mib > IN_USE_SHARE * card.total_mib
    ]
    if not used:
        return []
    cards = ", ".join(f"GPU {card.index}: {gib((card.used_mib or 0) * 2**20)}" for card in used)
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"memory is in use by other processes ({cards})",
            "A run that would fit an empty card may run out of memory on these.",
            "List the processes with nvidia-smi and end those that are left over.",
            {"used_mib": {str(card.index): card.used_mib for card in used}},
        )
    ]
