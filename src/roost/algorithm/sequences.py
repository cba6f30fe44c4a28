"""What is taken of a whole completion, where tokens lie flat, samples back to back."""

from __future__ import annotations

from torch import Tensor


def sequence_mean(values: Tensor, mask: Tensor, samples: Tensor) -> Tensor:
    """``[tokens]``: of each token, the mean of its sample's values inside the mask.

    Args:
        values: ``[tokens]``.
        mask: ``[tokens]`` bool; a sample that has no token in it has a mean of 0.
        samples: ``[tokens]`` int64, which sample a token belongs to, rising from 0.
    """
    inside = mask.to(values.dtype)
    count = int(samples[-1]) + 1 if len(samples) else 0
    zeros = values.new_zeros(count)
    totals = zeros.index_add(0, samples, values * inside)
    tokens = zeros.index_add(0, samples, inside).clamp(min=1.0)
    return (totals / tokens)[samples]
