"""GRPO: the mean over samples of the mean over each sample's tokens (arXiv:2402.03300)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.algorithm.losses import LossCounts


def token_weight(sample_tokens: int, counts: LossCounts) -> float:
    """``1 / (samples * sample_tokens)``: long samples' tokens weigh less."""
    return 1.0 / (counts.update_samples * sample_tokens)
