"""How a batch's token losses are averaged: one module a loss type.

Every loss is ``sum over tokens of weight * term``. A module's ``token_weight`` says the weight of
each token of a sample, from counts of the whole update and of the whole rollout batch, never of a
micro-batch: so the gradient is the same however the batch is split (the split law).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roost.algorithm.losses import bnpo, dapo, dr_grpo, grpo


@dataclass(frozen=True, slots=True)
class LossCounts:
    """What the weights depend on; over all ranks."""

    update_samples: int
    """Samples with loss tokens in this optimizer update."""
    update_tokens: int
    """Loss tokens in this optimizer update."""
    batch_tokens: int
    """Loss tokens in the whole rollout batch."""
    updates: int
    """Optimizer updates that the rollout batch is split into."""
    max_completion_tokens: int
    """The completion budget."""


TokenWeight = Callable[[int, LossCounts], float]
"""Weight of each loss token of a sample that has so many of them."""

TOKEN_WEIGHTS: dict[str, TokenWeight] = {
    "dapo": dapo.token_weight,
    "grpo": grpo.token_weight,
    "dr_grpo": dr_grpo.token_weight,
    "bnpo": bnpo.token_weight,
}
"""By ``loss.type``."""
