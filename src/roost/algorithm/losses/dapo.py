"""DAPO: every token of the batch weighs the same (Yu et al. 2025, arXiv:2503.14476)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.algorithm.losses import LossCounts


def token_weight(sample_tokens: int, counts: LossCounts) -> float:
    """``updates / batch_tokens``: one over the mean token count of the batch's updates.

    A token weighs the same in whichever update of the batch it falls.
    """
    return counts.updates / counts.batch_tokens
