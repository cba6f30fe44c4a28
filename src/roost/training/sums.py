"""What a training step measures: sums and counts while it runs, metrics at its end."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from roost.training.batch import TrainBatch

Sums = defaultdict[str, float]
"""Metrics of a batch as sums and counts, never means of means."""

LARGEST = ("difference_max", "computed_at_once")
"""Of these sums the largest of all packs and ranks counts."""


def compare(trainer: Tensor, engine: Tensor, sums: Sums) -> None:
    """Add the differences of two rows of log-probabilities of the same tokens."""
    difference = (trainer - engine).abs()
    sums["compared"] += len(difference)
    sums["difference"] += float(difference.sum(dtype=torch.float64))
    if len(difference):
        sums["difference_max"] = max(sums["difference_max"], float(difference.max()))


def metrics_of(
    sums: Sums, steps: Sequence[dict[str, float]], batch: TrainBatch
) -> dict[str, float]:
    """TRL's names where it has one; token means over all passes of the batch.

    Args:
        sums: Of all ranks.
        steps: What the optimizer said of each update.
        batch: What was trained on.
    """
    tokens = sums["tokens"]

    def mean(name: str) -> float:
        return sums[name] / tokens if tokens else math.nan

    compared = sums["compared"]
    metrics = {
        "loss": sums["loss"] / len(steps),
        "entropy": mean("entropy"),
        "clip_ratio/low_mean": mean("clip_low"),
        "clip_ratio/high_mean": mean("clip_high"),
        "clip_ratio/region_mean": mean("clip_low") + mean("clip_high"),
        "sampling/logp_difference_mean": sums["difference"] / compared if compared else math.nan,
        "sampling/logp_difference_max": float(sums["difference_max"]),
        "tokens/trained": batch.tokens,
        "tokens/computed": sums["computed"],
        "tokens/computed_at_once": sums["computed_at_once"],
        "updates_skipped": sum(not math.isfinite(step["grad_norm"]) for step in steps),
        **steps[-1],
    }
    if batch.config.loss.beta > 0:
        metrics["kl"] = mean("kl")
    return metrics
