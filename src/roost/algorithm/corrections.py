"""Importance weights that correct for an engine whose numbers are not the trainer's.

With equal weights two implementations still give a token slightly different probabilities, so
samples come from a policy that is not quite the one being trained. Weighting each token with
``trainer's probability / engine's`` makes their gradient that of the trainer's policy again;
bounding the weights keeps a few tokens from deciding it (Ionides 2008,
doi:10.1198/106186008X320456; for engines and trainers Yao et al. 2025,
https://fengyao.notion.site/off-policy-rl).
"""

from __future__ import annotations

import torch
from torch import Tensor

from roost.algorithm.objective import TokenBatch
from roost.algorithm.sequences import sequence_mean
from roost.config import CorrectionConfig


def log_ratios(trainer: Tensor, tokens: TokenBatch, level: str) -> Tensor:
    """``[tokens]``: log of trainer's over engine's probability, of a token or of its sample's mean.

    The mean over a sample's tokens, the logarithm of the geometric mean of their ratios, does not
    grow with the sample's length as their sum does. Outside the loss nothing is compared: a tool's
    token can be so unlikely that its ratio overflows.

    Args:
        trainer: ``[tokens]`` float32, under the weights that sampled, without gradient.
        tokens: With the engine's, over the same distribution: the full vocabulary.
        level: ``token`` or ``sequence``.
    """
    mask = tokens.mask
    difference = torch.where(mask, trainer - tokens.engine_logprobs, 0.0)
    if level == "sequence":
        return sequence_mean(difference, mask, tokens.samples)
    return difference


def importance_weights(log_ratio: Tensor, config: CorrectionConfig) -> Tensor | None:
    """``[tokens]``: what multiplies each token's term; None where nothing is corrected.

    Where engine and trainer agree it is exactly 1.

    Args:
        log_ratio: From ``log_ratios``.
        config: With ``mode`` decided.
    """
    if config.mode == "off":
        return None
    ratio = torch.exp(log_ratio)
    if config.mode == "mask":
        return torch.where(_outside(ratio, config), 0.0, ratio)
    return ratio.clamp(config.min, config.max)


def ratio_sums(log_ratio: Tensor, mask: Tensor, config: CorrectionConfig) -> dict[str, float]:
    """Of the tokens in the mask: sum, largest and smallest ratio, and how many leave the bounds.

    The smallest comes as its inverse, so that over packs and ranks the largest counts.
    """
    ratio = torch.where(mask, torch.exp(log_ratio), 0.0)
    inverse = torch.where(mask, torch.exp(-log_ratio), 0.0)
    outside = _outside(ratio, config) & mask
    names = ("ratio", "ratio_outside", "ratio_max", "ratio_inverse_max")
    if not len(ratio):
        return dict.fromkeys(names, 0.0)
    values = [ratio.double().sum(), outside.double().sum(), ratio.amax(), inverse.amax()]
    # One transfer from a GPU for all of them.
    numbers = torch.stack([value.double() for value in values]).tolist()
    return dict(zip(names, numbers, strict=True))


def _outside(ratio: Tensor, config: CorrectionConfig) -> Tensor:
    return (ratio < config.min) | (ratio > config.max)
