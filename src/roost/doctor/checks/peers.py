"""Whether cards copy to each other directly, rightly, and as fast as their link is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import nvidia, torch_build

NAME = "peer-to-peer"
FAULT_SHARE, WARNING_SHARE = 0.25, 0.5
"""Of the nominal rate of the link. Healthy cards measure 0.8 to 0.9 of it on one socket and 0.6 to
0.8 across two; cards whose copies are redirected measure a tenth or less."""
NVLINK_GBPS = 14.0
"""One direction of the slowest NVLink, that of the RTX 3090 and A6000, 1e9 bytes a second. Servers'
links carry 25 to 50; even so, a pair that falls back to PCIe is far below the half of this."""

_Pair = Mapping[str, Any]
_REASONS = {
    "GNS": "the driver does not offer it for this card",
    "CNS": "the chipset does not support it between these slots",
    "TNS": "the topology does not support it",
    "NS": "it is not supported",
    "DR": "a driver setting disables it",
}


def check(facts: Facts) -> list[Finding]:
    """Access, correctness and speed of each ordered pair."""
    count = len(torch_build.visible(facts))
    if count < 2:
        return [Finding(NAME, Level.OK, f"nothing to join: {count or 'no'} GPU")]
    said = facts.peers.said()
    done = [pair for pair in said if "gbps" in pair]
    found = [
        *_unanswered(facts, said, done),
        *_wrong(done),
        *_slow(facts, [pair for pair in done if pair["access"] and pair["right"]]),
        *_barred(facts, [pair for pair in done if not pair["access"]]),
    ]
    return found or [_well(facts, done)]


def _well(facts: Facts, done: Sequence[_Pair]) -> Finding:
    words = sorted(set(nvidia.matrix(facts.smi_topology).values()))
    rates = [pair["gbps"] for pair in done]
    what = f"every pair copies directly, {min(rates):.0f} to {max(rates):.0f} GB/s"
    over = f" ({', '.join(words)})" if words else ""
    return Finding(NAME, Level.OK, what + over, data={"pairs": list(done)})


def _unanswered(facts: Facts, said: Sequence[_Pair], done: Sequence[_Pair]) -> list[Finding]:
    if not facts.peers.problem:
        return []
    tried = said[-1] if len(said) > 0 and said[-1] not in done else None
    where = f" at {_name(tried)}" if tried else ""
    return [
        Finding(
            NAME,
            Level.FAULT,
            f"{facts.peers.who} {facts.peers.problem}{where}",
            "Anything that joins these cards hangs or fails in the same way.",
            "See iommu and acs below; try NCCL_P2P_DISABLE=1, which takes the way through host "
            "memory; look for Xid errors in dmesg.",
            {"pairs": list(done)},
        )
    ]


def _wrong(done: Sequence[_Pair]) -> list[Finding]:
    bad = [pair for pair in done if not pair["right"]]
    if not bad:
        return []
    return [
        Finding(
            NAME,
            Level.FAULT,
            f"copies arrive with wrong contents: {_names(bad)}",
            "Models spread over these cards compute nonsense, with no error.",
            "The IOMMU or ACS redirects the copies: see iommu and acs below. Until it is mended, "
            "run with NCCL_P2P_DISABLE=1.",
            {"pairs": bad},
        )
    ]


def _slow(facts: Facts, direct: Sequence[_Pair]) -> list[Finding]:
    rated = [(pair, nominal) for pair in direct if (nominal := _nominal(facts, pair))]
    found = []
    for level, low, high in (
        (Level.FAULT, 0.0, FAULT_SHARE),
        (Level.WARNING, FAULT_SHARE, WARNING_SHARE),
    ):
        slow = [(p, n) for p, n in rated if low <= p["gbps"] / n < high]
        if slow:
            pair, nominal = min(slow, key=lambda one: one[0]["gbps"])
            found.append(
                Finding(
                    NAME,
                    level,
                    f"copies are slow: {_names([one for one, _ in slow])}; {_name(pair)} has "
                    f"{pair['gbps']:.1f} of {nominal:.0f} GB/s",
                    "Gradients, weights and tensor-parallel layers cross this link in each step.",
                    "See iommu and acs below; look in card-health for lanes; check that no other "
                    "process uses the cards, and move cards to slots of one socket.",
                    {"pairs": [one for one, _ in slow]},
                )
            )
    return found


def _barred(facts: Facts, barred: Sequence[_Pair]) -> list[Finding]:
    if not barred:
        return []
    words = nvidia.matrix(facts.smi_peers)
    codes = {words.get(_physical(facts, pair), "") for pair in barred}
    reasons = [_REASONS[code] for code in sorted(codes) if code in _REASONS]
    why = f": {', '.join(reasons)}" if reasons else ""
    rate = min(pair["gbps"] for pair in barred)
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"no direct access between {_names(barred)}{why}; {rate:.1f} GB/s through host memory",
            "What crosses cards is copied twice and loads the CPU's memory: prefer plans that "
            "send little, such as LoRA with one copy of the model a card.",
            _barred_do(codes),
            {"pairs": list(barred)},
        )
    ]


def _barred_do(codes: set[str]) -> str:
    if codes == {"GNS"}:
        return "Nothing: GeForce cards since the 40 series have it disabled by the driver."
    return (
        "Put the cards below one root complex or switch; see iommu below. In a virtual machine, "
        "ask the host for peer-to-peer between the cards."
    )


def _nominal(facts: Facts, pair: _Pair) -> float | None:
    """The rate of the link between two cards, 1e9 bytes a second."""
    source, target = _physical(facts, pair)
    links = nvidia.nvlinks(nvidia.matrix(facts.smi_topology).get((source, target), ""))
    if links:
        return links * NVLINK_GBPS
    cards = {card.index: card for card in nvidia.gpus(facts)}
    rates = [
        rate
        for index in (source, target)
        if index in cards and (rate := cards[index].pcie_gbps) is not None
    ]
    return min(rates, default=None)


def _physical(facts: Facts, pair: _Pair) -> tuple[int, int]:
    """The driver's numbers of two cards: CUDA_VISIBLE_DEVICES gives them others in torch."""
    by_address = {card.address: card.index for card in nvidia.gpus(facts)}
    visible = torch_build.visible(facts)

    def number(index: int) -> int:
        return by_address.get(visible[index].address, index)

    return number(pair["from"]), number(pair["to"])


def _name(pair: _Pair) -> str:
    return f"GPU {pair['from']} to {pair['to']}"


def _names(pairs: Sequence[_Pair]) -> str:
    names = [_name(pair) for pair in pairs]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
