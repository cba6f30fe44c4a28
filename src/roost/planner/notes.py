"""What a person should know beside a plan's figures."""

from __future__ import annotations

from collections.abc import Iterator

from roost.planner.plan import Plan

SPOKEN = {
    "memory_visible_bytes": "visible memory",
    "memory_listed_gb": "memory",
    "bandwidth_gbps": "memory bandwidth",
    "bf16_tflops": "arithmetic rate",
    "tdp_w": "power",
    "nvlink_gbps": "NVLink rate",
    "pcie_gbps": "PCIe rate",
}


def notes(plan: Plan) -> list[str]:
    """Sentences, each about an input that the plan's figures stand on."""
    return [*_context(plan), *_card(plan)]


def _context(plan: Plan) -> Iterator[str]:
    tokens, model = plan.request.workload.tokens, plan.request.model
    if 0 < model.shape.max_positions < tokens:
        yield (
            f"a rollout of {tokens:,} tokens is longer than the {model.shape.max_positions:,} "
            f"that {model.name}'s config.json allows"
        )


def _card(plan: Plan) -> Iterator[str]:
    card = plan.request.hardware.card
    if card.memory_visible_bytes is None and not plan.request.listed:
        yield f"no log of {card.name}'s visible memory was found: 0.98 of the listed is assumed"
    unseen = [SPOKEN.get(name, name) for name in card.unverified]
    if unseen:
        yield f"of {card.name}, no source was seen for: {', '.join(unseen)}"
    if card.bf16_tflops is None:
        yield f"{card.name} has no arithmetic rate: 100 TFLOPS are assumed"
