"""How far the trainer's and the engine's log-probabilities of the same tokens are apart.

As sums, which add up over packs and ranks, and as what can be read off them: a straight line of one
against the other, its scatter, and how the distance is spread over the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

HUGE = 3.0
"""Nats: a token that one side finds e^3 = 20 times likelier than the other is not rounded."""
_EQUAL = 1e-6
"""Variance in square nats below which numbers are equal: greedy sampling gives all of them 0."""
_PREFIX = "mismatch/"
LARGEST = (f"{_PREFIX}largest", f"{_PREFIX}lag")
"""Of these sums the largest counts."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Of the compared tokens: e is the engine's log-probability, d the trainer's less e, in nats.

    ``tokens`` is how many, ``distance`` the sum of abs(d), ``largest`` the largest abs(d).
    """

    tokens: float = 0.0
    distance: float = 0.0
    largest: float = 0.0
    difference: float = 0.0
    """Sum of d."""
    difference_square: float = 0.0
    """Sum of d squared."""
    engine: float = 0.0
    """Sum of e."""
    engine_square: float = 0.0
    """Sum of e squared."""
    product: float = 0.0
    """Sum of d times e."""
    huge: float = 0.0
    """Tokens with abs(d) above ``HUGE``."""
    huge_distance: float = 0.0
    """Sum of their abs(d)."""
    lag: float = 0.0
    """Versions between the policy that is trained and the oldest that sampled a token."""

    @classmethod
    def of(cls, sums: Mapping[str, float]) -> Mismatch:
        """From sums by name, of which others are left aside."""
        return cls(**{f.name: sums.get(_PREFIX + f.name, 0.0) for f in fields(cls)})

    @property
    def mean(self) -> float:
        """Mean of abs(d); NaN without tokens."""
        return self.distance / self.tokens if self.tokens else math.nan

    @property
    def sidedness(self) -> float:
        """Sum of d by sum of abs(d): 0 where they cancel, 1 or -1 where all have one sign."""
        return self.difference / self.distance if self.distance else 0.0

    @property
    def huge_share(self) -> float:
        """Share of tokens with a huge difference."""
        return self.huge / self.tokens if self.tokens else 0.0

    @property
    def rest(self) -> float:
        """Mean of abs(d) of all other tokens."""
        others = self.tokens - self.huge
        return (self.distance - self.huge_distance) / others if others else math.inf

    @property
    def slope(self) -> float:
        """Of the trainer's log-probabilities against the engine's; 1 where the engine's are equal.

        Least squares. Differences that have nothing to do with e leave it at 1 or bring it nearer
        to 0.
        """
        spread = self._spread
        return 1.0 + self._shared / spread if spread > _EQUAL else 1.0

    @property
    def scatter(self) -> float:
        """Share of the trainer's variance that the line does not explain: 1 - r^2.

        0 where either side's numbers are all equal, so that there is no line.
        """
        variance = self._spread + 2 * self._shared + self._difference_spread
        if not (self._spread > _EQUAL and variance > _EQUAL):
            return 0.0
        return 1.0 - self.slope**2 * self._spread / variance

    @property
    def _spread(self) -> float:
        return _variance(self.engine_square, self.engine, self.engine, self.tokens)

    @property
    def _difference_spread(self) -> float:
        square, total = self.difference_square, self.difference
        return _variance(square, total, total, self.tokens)

    @property
    def _shared(self) -> float:
        return _variance(self.product, self.difference, self.engine, self.tokens)


def _variance(product: float, one: float, other: float, count: float) -> float:
    return product / count - one / count * (other / count) if count else 0.0


def mismatch_sums(trainer: Tensor, engine: Tensor, mask: Tensor) -> dict[str, float]:
    """What ``Mismatch`` is made of, but for the versions; float64 sums.

    Args:
        trainer: ``[tokens]`` log-probabilities under the weights that sampled.
        engine: ``[tokens]`` of the engine, over the same distribution.
        mask: ``[tokens]`` bool: those to compare.
    """
    if not len(mask):
        return {}
    d = torch.where(mask, trainer - engine, 0.0).double()
    e = torch.where(mask, engine, 0.0).double()
    distance = d.abs()
    huge = distance > HUGE
    values = {
        "tokens": mask.sum(dtype=torch.float64),
        "distance": distance.sum(),
        "largest": distance.amax(),
        "difference": d.sum(),
        "difference_square": d.square().sum(),
        "engine": e.sum(),
        "engine_square": e.square().sum(),
        "product": (d * e).sum(),
        "huge": huge.sum(dtype=torch.float64),
        "huge_distance": (distance * huge).sum(),
    }
    # One transfer from a GPU for all of them.
    numbers = torch.stack(list(values.values())).tolist()
    return {_PREFIX + name: number for name, number in zip(values, numbers, strict=True)}


def lag_sums(lag: int) -> dict[str, float]:
    """How many versions the oldest token is behind, for ``Mismatch``."""
    return {f"{_PREFIX}lag": float(lag)}
