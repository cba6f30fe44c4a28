"""The PCI bus: which bridges are above a card, and what they do to copies between cards."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roost.doctor.facts import Facts

_ADDRESS = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
REDIRECTS = ("ReqRedir", "CmpltRedir", "UpstreamFwd")
"""Bits of ACSCtl that send requests between two ports of a switch up to the root complex."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A PCI bridge with Access Control Services."""

    address: str
    port: str
    """``Root Port``, ``Upstream Port``, ``Downstream Port``; empty where lspci does not say."""
    on: tuple[str, ...]
    """Bits that are set in ACSCtl."""

    @property
    def redirects(self) -> bool:
        """Whether it keeps neighbours below one switch from speaking directly."""
        return any(bit in self.on for bit in REDIRECTS)


def ancestors(facts: Facts, address: str) -> list[str]:
    """The bridges above a card, from the root down."""
    found = re.findall(_ADDRESS, facts.pci.get(address, ""))
    return [one for one in found if one != address]


def bridges(lspci: str) -> dict[str, Bridge]:
    """Of ``lspci -vvv -D``, the bridges that show an ACSCtl line, by address."""
    found = {}
    for block in re.split(r"\n(?=\S)", lspci):
        head = re.match(rf"({_ADDRESS}) PCI bridge", block)
        control = re.search(r"ACSCtl:\s*((?:\w+[+-]\s*)+)", block)
        if head and control:
            port = re.search(r"Express .*?(Root|Upstream|Downstream) Port", block)
            on = tuple(word[:-1] for word in control.group(1).split() if word.endswith("+"))
            found[head.group(1)] = Bridge(
                head.group(1), f"{port.group(1)} Port" if port else "", on
            )
    return found


def sharing_a_switch(facts: Facts) -> list[tuple[str, str]]:
    """Pairs of cards with a switch above both: more than a root port in common."""
    cards = sorted(facts.pci)
    return [
        (one, other)
        for position, one in enumerate(cards)
        for other in cards[position + 1 :]
        if len(_common(ancestors(facts, one), ancestors(facts, other))) >= 2
    ]


def _common(one: list[str], other: list[str]) -> list[str]:
    return [bridge for bridge in one if bridge in other]


def group_type(facts: Facts, address: str) -> str | None:
    """How the IOMMU treats a card: ``identity``, ``DMA``, ``DMA-FQ``; None when it does not."""
    text = facts.files.get(f"/sys/bus/pci/devices/{address}/iommu_group/type")
    return text.strip() if text is not None else None
