"""What a training step measures: sums and counts while it runs, metrics at its end."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import Tensor

from roost.algorithm import mismatch
from roost.algorithm.corrections import importance_weights, log_ratios, ratio_sums
from roost.algorithm.mismatch import Mismatch, mismatch_sums
from roost.algorithm.objective import TokenBatch
from roost.config import CorrectionConfig
from roost.training.batch import TrainBatch

Sums = defaultdict[str, float]
"""Metrics of a batch as sums and counts, never means of means."""

LARGEST = ("computed_at_once", "ratio_max", "ratio_inverse_max", *mismatch.LARGEST)
"""Of these sums the largest of all packs and ranks counts."""


def add(sums: Sums, more: Mapping[str, float]) -> None:
    """Add sums of a pack to those so far."""
    for name, value in more.items():
        sums[name] = max(sums[name], value) if name in LARGEST else sums[name] + value


def compare(
    trainer: Tensor, tokens: TokenBatch, config: CorrectionConfig, sums: Sums
) -> Tensor | None:
    """Measure the engine's log-probabilities against the trainer's, and weight the tokens by them.

    Args:
        trainer: ``[tokens]`` under the weights that sampled, without gradient.
        tokens: The same tokens with the engine's.
        config: The correction, with ``mode`` decided.
        sums: Is added to.

    Returns:
        What ``objective`` takes as its correction.
    """
    log_ratio = log_ratios(trainer, tokens, config.level)
    add(sums, mismatch_sums(trainer, tokens.engine_logprobs, tokens.mask))
    add(sums, ratio_sums(log_ratio, tokens.mask, config))
    return importance_weights(log_ratio, config)


def metrics_of(
    sums: Sums, steps: Sequence[dict[str, float]], batch: TrainBatch
) -> dict[str, float]:
    """TRL's names where it has one; token means over all passes of the batch.

    Args:
        sums: Of all ranks.
        steps: What the optimizer said of each update.
        batch: What was trained on.
    """

    def mean(name: str) -> float:
        return _share(sums[name], sums["tokens"])

    metrics = {
        "loss": sums["loss"] / len(steps),
        "entropy": mean("entropy"),
        "clip_ratio/low_mean": mean("clip_low"),
        "clip_ratio/high_mean": mean("clip_high"),
        "clip_ratio/region_mean": mean("clip_low") + mean("clip_high"),
        **_sampling_metrics(sums),
        **_correction_metrics(sums, batch.config.decided_correction.mode),
        "tokens/trained": batch.tokens,
        "tokens/computed": sums["computed"],
        "tokens/computed_at_once": sums["computed_at_once"],
        "updates_skipped": sum(not math.isfinite(step["grad_norm"]) for step in steps),
        **steps[-1],
    }
    if batch.config.loss.beta > 0:
        metrics["kl"] = mean("kl")
    return metrics


def _sampling_metrics(sums: Sums) -> dict[str, float]:
    """Of the engine against the trainer, before anything is bounded."""
    found = Mismatch.of(sums)
    inverse = sums["ratio_inverse_max"]
    return {
        "sampling/logp_difference_mean": found.mean,
        "sampling/logp_difference_max": found.largest,
        "sampling/version_lag_max": found.lag,
        "sampling/importance_ratio_mean": _share(sums["ratio"], found.tokens),
        "sampling/importance_ratio_min": 1.0 / inverse if inverse else math.nan,
        "sampling/importance_ratio_max": sums["ratio_max"] if found.tokens else math.nan,
    }


def _correction_metrics(sums: Sums, mode: str) -> dict[str, float]:
    """Shares of the compared tokens; none without a correction."""
    if mode == "off":
        return {}
    outside = _share(sums["ratio_outside"], Mismatch.of(sums).tokens)
    return {
        "correction/truncated_ratio": outside if mode == "truncate" else 0.0,
        "correction/dropped_ratio": outside if mode == "mask" else 0.0,
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
