"""Rewards to advantages: how much better each sample is than its group.

Shao et al. 2024 (arXiv:2402.03300), section 4.1; without the division, Liu et al. 2025
(arXiv:2503.20783).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roost.samples import Group

EPSILON = 1e-4
"""Added to the standard deviation, as TRL does."""


@dataclass(frozen=True, slots=True)
class AdvantageStats:
    """The rewards of a batch, for metrics."""

    rewards: list[list[float]]
    """Of each group, the rewards of its scored samples."""
    by_function: dict[str, list[float]]
    """Of each reward function, the values of the samples that it scored."""

    def metrics(self) -> dict[str, float]:
        """TRL's names: ``reward``, ``reward_std``, ``frac_reward_zero_std``, ``rewards/NAME/...``.

        ``reward_std`` is the mean over groups of the standard deviation within the group.
        """
        every = [reward for group in self.rewards for reward in group]
        spreads = [_std(group) for group in self.rewards if len(group) > 1]
        metrics = {
            "reward": float(np.mean(every)) if every else float("nan"),
            "reward_std": float(np.mean(spreads)) if spreads else 0.0,
            "frac_reward_zero_std": (
                float(np.mean([spread == 0.0 for spread in spreads])) if spreads else 1.0
            ),
        }
        for name, values in self.by_function.items():
            metrics[f"rewards/{name}/mean"] = float(np.mean(values)) if values else float("nan")
            metrics[f"rewards/{name}/std"] = _std(values) if len(values) > 1 else 0.0
        return metrics


def assign_advantages(groups: Sequence[Group], scale: str) -> AdvantageStats:
    """Set ``sample.advantage`` of every sample.

    ``A = r - mean(group)``, divided for ``scale = "group"`` by the group's standard deviation
    (Bessel-corrected) plus 1e-4, for ``"batch"`` by that of all scored samples, and for ``"none"``
    not at all. Unscored samples count in no mean and get 0; so does a sample scored alone, and a
    group whose rewards are all equal.

    Args:
        groups: With ``sample.reward`` set, or None.
        scale: ``group``, ``batch`` or ``none``.
    """
    batch_std = _std([s.reward for g in groups for s in g.samples if s.reward is not None])
    for group in groups:
        scored = [sample.reward for sample in group.samples if sample.reward is not None]
        alike = len(set(scored)) <= 1
        mean = float(np.mean(scored)) if scored else 0.0
        divisor = _divisor(scale, scored, batch_std)
        for sample in group.samples:
            sample.advantage = (
                0.0 if alike or sample.reward is None else (sample.reward - mean) / divisor
            )
    return _stats(groups)


def _divisor(scale: str, scored: Sequence[float], batch_std: float) -> float:
    if scale == "none":
        return 1.0
    return EPSILON + (_std(scored) if scale == "group" else batch_std)


def _std(values: Sequence[float]) -> float:
    # Equal values are asked for first: their rounded mean may differ from them, and 0.0 must be 0.
    return float(np.std(values, ddof=1)) if len(set(values)) > 1 else 0.0


def _stats(groups: Sequence[Group]) -> AdvantageStats:
    by_function: dict[str, list[float]] = {}
    for group in groups:
        for sample in group.samples:
            for name, value in sample.rewards.items():
                values = by_function.setdefault(name, [])
                if value is not None:
                    values.append(value)
    rewards = [[s.reward for s in group.samples if s.reward is not None] for group in groups]
    return AdvantageStats(rewards, by_function)
