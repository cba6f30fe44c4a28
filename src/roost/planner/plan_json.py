"""Parts of a plan as JSON."""

from __future__ import annotations

from typing import Any

from roost.planner import power
from roost.planner.request import Layout, Request
from roost.planner.terms import Phase


def layout_json(layout: Layout) -> dict[str, Any]:
    """Mode, cards and shares of a layout."""
    return {
        "mode": layout.mode,
        "trainer": {"gpus": layout.trainer_gpus, "strategy": layout.strategy},
        "rollout": {
            "gpus": layout.rollout_gpus,
            "tensor_parallel": layout.tensor_parallel,
            "replicas": layout.replicas,
        },
        "sleep_level": layout.sleep_level,
        "gpu_memory_utilization": layout.utilization,
    }


def hardware_json(request: Request) -> dict[str, Any]:
    """The cards, and where their figures are from."""
    hardware = request.hardware
    return {
        "card": hardware.card.name,
        "gpus": hardware.gpus,
        "gpus_per_node": hardware.gpus_per_node,
        "nodes": hardware.nodes,
        "processor": power.processor_for(hardware).name,
        "source": hardware.card.source_of(
            "memory_listed_gb" if request.listed else "memory_visible_bytes"
        ),
        "unverified": list(hardware.card.unverified),
    }


def phase_json(phase: Phase) -> dict[str, Any]:
    """A phase and its terms."""
    return {
        "name": phase.name,
        "cards": phase.cards,
        "bytes": phase.bytes,
        "terms": [
            {"name": t.name, "bytes": t.bytes, "formula": t.formula, "source": t.source}
            for t in phase.terms
        ],
    }
