"""The clipped objective: importance ratio, clipping, KL, summed with the loss's token weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roost.algorithm.kl import k3
from roost.algorithm.sequences import sequence_mean
from roost.config import LossConfig


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The loss tokens of a micro-batch, flat: samples back to back.

    All tensors are ``[tokens]``; those of a sample are all in the same micro-batch.
    """

    advantages: Tensor
    weights: Tensor
    """From ``losses.TOKEN_WEIGHTS``; 0 for tokens outside the loss."""
    samples: Tensor
    """Which sample a token belongs to, int64 from 0."""
    old_logprobs: Tensor | None
    """Under the policy that sampled; None where that is the policy as it is."""
    reference_logprobs: Tensor | None
    """Under the reference; None without KL."""
    engine_logprobs: Tensor
    """As the engine reported, full vocabulary, same temperature."""

    @property
    def mask(self) -> Tensor:
        """``[tokens]`` bool: tokens that count in the loss."""
        return self.weights > 0


def objective(
    logprobs: Tensor,
    entropy: Tensor,
    batch: TokenBatch,
    config: LossConfig,
    correction: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a micro-batch, and sums for the metrics.

    ``term = -min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon_high) * A) + beta * ratio * k3``
    (arXiv:2402.03300), with ratio at most ``delta`` in the first product where that is
    set (INTELLECT-2, arXiv:2505.07291). The KL is weighted by the ratio, without which
    the gradient of k3 is biased (DeepSeek-V3.2, arXiv:2512.02556). A correction multiplies the
    whole term, KL included: all of it is an expectation over what the engine sampled.

    Args:
        logprobs: ``[tokens]`` float32 under the policy, with gradient.
        entropy: ``[tokens]`` float32 without.
        batch: What is known of the tokens.
        config: ``loss``.
        correction: ``[tokens]`` without gradient, from ``corrections.importance_weights``.

    Returns:
        A scalar to call backward on, and sums by name; ``tokens`` among them.
    """
    old = _inside(batch.old_logprobs, logprobs, batch.mask)
    ratio = importance_ratio(logprobs, old, batch, config.importance)
    low = 1.0 - config.epsilon
    high = 1.0 + (config.epsilon if config.epsilon_high is None else config.epsilon_high)
    unclipped = ratio if config.delta is None else ratio.clamp(max=config.delta)
    advantages = batch.advantages
    terms = -torch.minimum(unclipped * advantages, ratio.clamp(low, high) * advantages)
    sums = _clip_sums(ratio.detach(), advantages, batch.mask, low, high)
    if batch.reference_logprobs is not None:
        divergence = k3(logprobs, _inside(batch.reference_logprobs, logprobs, batch.mask))
        terms = terms + config.beta * ratio * divergence
        sums["kl"] = _masked_sum(divergence.detach(), batch.mask)
    if correction is not None:
        terms = terms * correction
    loss = (terms * batch.weights).sum()
    sums["loss"] = loss.item()
    sums["entropy"] = _masked_sum(entropy, batch.mask)
    return loss, sums


def importance_ratio(logprobs: Tensor, old: Tensor, batch: TokenBatch, level: str) -> Tensor:
    """``[tokens]``: exp(logp - old) of each token, or of its sample's mean (GSPO)."""
    difference = logprobs - old
    if level == "sequence":
        difference = sequence_mean(difference, batch.mask, batch.samples)
    return torch.exp(difference)


def _inside(other: Tensor | None, logprobs: Tensor, mask: Tensor) -> Tensor:
    """``other`` on loss tokens, the policy's own log-probability elsewhere or where it is None.

    A tool's tokens can be so unlikely that their ratio overflows, and infinity times a weight of 0
    is NaN; this way they differ by 0.
    """
    own = logprobs.detach()
    return own if other is None else torch.where(mask, other, own)


def _clip_sums(
    ratio: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float
) -> dict[str, float]:
    too_low = (ratio < low) & (advantages < 0) & mask
    too_high = (ratio > high) & (advantages > 0) & mask
    return {
        "tokens": float(mask.sum()),
        "clip_low": float(too_low.sum()),
        "clip_high": float(too_high.sum()),
    }


def _masked_sum(values: Tensor, mask: Tensor) -> float:
    return float((values * mask).sum(dtype=torch.float64))
