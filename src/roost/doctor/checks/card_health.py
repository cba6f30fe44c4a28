"""Settings and faults of each card by itself."""

from __future__ import annotations

from collections.abc import Sequence

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import nvidia

NAME = "card-health"


def check(facts: Facts) -> list[Finding]:
    """Memory errors, narrow links, partitions, exclusive mode."""
    cards = nvidia.gpus(facts)
    if not cards:
        return [Finding(NAME, Level.OK, "no card to examine")]
    found = [*_errors(cards), *_narrow(cards), *_partitioned(cards), *_exclusive(cards)]
    return found or [Finding(NAME, Level.OK, "no memory errors, full link width, no partitions")]


def _names(cards: Sequence[nvidia.SmiGpu]) -> str:
    return ", ".join(f"GPU {card.index}" for card in cards)


def _errors(cards: Sequence[nvidia.SmiGpu]) -> list[Finding]:
    bad = [card for card in cards if card.uncorrected_errors]
    if not bad:
        return []
    counts = ", ".join(f"GPU {card.index}: {card.uncorrected_errors}" for card in bad)
    return [
        Finding(
            NAME,
            Level.FAULT,
            f"uncorrectable memory errors since the driver was loaded ({counts})",
            "The card has lost data. Runs on it may crash or compute wrong numbers.",
            "Reset or reboot, so that bad rows are remapped: nvidia-smi -q -d ROW_REMAPPER says "
            "whether they were. Where errors come back, replace the card.",
        )
    ]


def _narrow(cards: Sequence[nvidia.SmiGpu]) -> list[Finding]:
    narrow = [
        card
        for card in cards
        if card.pcie_width and card.pcie_width_max and card.pcie_width < card.pcie_width_max
    ]
    if not narrow:
        return []
    widths = ", ".join(
        f"GPU {card.index}: x{card.pcie_width} of x{card.pcie_width_max}" for card in narrow
    )
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"the PCIe link has fewer lanes than the card can use ({widths})",
            "Loading, sleep and wake, offloading and copies between cards are slower.",
            "Put the card into a slot with all lanes, seat it and its riser anew, and look for "
            "bifurcation in the BIOS. Some boards have no better slot.",
        )
    ]


def _partitioned(cards: Sequence[nvidia.SmiGpu]) -> list[Finding]:
    split = [card for card in cards if card.mig]
    if not split:
        return []
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"{_names(split)}: split into partitions (MIG)",
            "A process sees one partition, and partitions cannot copy to each other, so a model "
            "cannot be spread over them.",
            "For training on whole cards: nvidia-smi -mig 0, as root, with nothing running.",
        )
    ]


def _exclusive(cards: Sequence[nvidia.SmiGpu]) -> list[Finding]:
    shut = [card for card in cards if card.compute_mode not in ("Default", "[N/A]", "N/A")]
    if not shut:
        return []
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"{_names(shut)}: compute mode is {shut[0].compute_mode}",
            "Only one process may use the card, so an engine in a process of its own cannot "
            "share it with the trainer.",
            "nvidia-smi -c DEFAULT, as root.",
        )
    ]
