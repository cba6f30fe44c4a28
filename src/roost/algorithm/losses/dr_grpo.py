"""Dr. GRPO: token sums over a constant, so length does not matter (arXiv:2503.20783)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.algorithm.losses import LossCounts


def token_weight(sample_tokens: int, counts: LossCounts) -> float:
    """``1 / (samples * max_completion_tokens)``."""
    return 1.0 / (counts.update_samples * counts.max_completion_tokens)
