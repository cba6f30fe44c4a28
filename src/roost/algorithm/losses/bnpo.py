"""BNPO: the mean over the tokens of each optimizer update.

TRL takes the mean over each micro-batch, which changes with its size. Here the update is the unit,
so that splitting it changes nothing; with one update a batch this is DAPO.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.algorithm.losses import LossCounts


def token_weight(sample_tokens: int, counts: LossCounts) -> float:
    """``1 / update_tokens``."""
    return 1.0 / counts.update_tokens
