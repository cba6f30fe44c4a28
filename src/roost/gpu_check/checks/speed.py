"""``roost bench`` on models of random weights at real shapes, in few and short steps."""

from __future__ import annotations

import sys
from typing import Any

from roost.bench.comparison import Request, compare
from roost.bench.job import Workload
from roost.bench.rivals import FLOOR, ROOST, split_installed
from roost.gpu_check.models import device_of, real_model
from roost.gpu_check.results import Found, Place

DEADLINE_S = 60.0
"""For a contender's loading, and for a step."""


def generate(place: Place) -> Found:
    """Generation of 64 completions, beside its matrix products and the rivals that are there."""
    device_of(place)
    workload = Workload(45, 8, 1) if place.small else Workload(128, 256, 8)
    rivals = [] if place.small else ["transformers", "vllm"]
    result = _bench(place, "generate", "Qwen3-0.6B", workload, rivals)
    return Found(f"Qwen3-0.6B, {_told(result)}", result)


def step(place: Place) -> Found:
    """A whole step with an adapter, beside TRL's where it is installed."""
    device_of(place)
    workload = Workload(45, 8, 2, 4) if place.small else Workload(128, 256, 8)
    rivals = [] if place.small else ["trl-bf16", "trl-vllm"]
    result = _bench(place, "step", "Qwen3-1.7B", workload, rivals, method="lora")
    return Found(f"Qwen3-1.7B with an adapter, {_told(result)}", result)


def _bench(
    place: Place, kind: str, model: str, workload: Workload, rivals: list[str], method: str = "full"
) -> dict[str, Any]:
    here, _ = split_installed(rivals, kind)
    request = Request(
        kind=kind,
        model=str(real_model(model, place)),
        workload=workload,
        rivals=here,
        rounds=1 if place.small else 2,
        threads=1 if place.small else 8,
        deadline_s=DEADLINE_S,
        method=method,
    )
    return compare(request, lambda text: print(text, file=sys.stderr))


def _told(result: dict[str, Any]) -> str:
    """The rows that a person wants first."""
    rows = {row["name"]: row for row in result["rows"]}
    ours = rows[ROOST]
    parts = [
        f"Roost {ours['step_s']:.2f} s, {ours['generated_tokens_per_s']:,.0f} tokens/s sampled"
    ]
    if result["kind"] == "step":
        parts.append(f"{ours['trained_tokens_per_s']:,.0f} trained")
    parts.append(f"{ours['peak_bytes'] / 2**30:.1f} GiB")
    if "floor_share" in result:
        parts.append(f"{result['floor_share']:.0%} of the floor")
    for name, ratio in result["ratios"].items():
        if name != FLOOR:
            parts.append(f"{name} {ratio['step']:.2f}x the time")
    parts += [f"{name} {reason}" for name, reason in result["failed"].items()]
    return ", ".join(parts)
