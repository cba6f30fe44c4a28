"""How sure a plan is: bands that 90 of 100 measurements are expected within.

Each term has the spread that logs showed around it (``benchmarks/plan_fit.py`` prints them), and
the spreads of independent terms add as variances. Nothing is added for safety.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, sqrt
from typing import Final

from roost.planner.terms import Term

QUANTILE_90: Final = 1.645
"""Standard deviations that hold 90 % of a normal distribution between them."""
WEIGHT_SPREAD: Final[Mapping[str, float]] = {"nf4": 0.07}
"""Of the weights, as a share: 4-bit checkpoints leave some layers in 16 bit, which ones differs."""
PLAIN_WEIGHT_SPREAD: Final = 0.013
"""The same of other weights."""
ACTIVATION_SPREAD: Final = 0.14
"""Of the profile run's peak, as a share."""
NON_TORCH_SPREAD: Final = {False: 16 * 2**30 // 100, True: 12 * 2**30 // 100}
"""Bytes outside torch's allocator, without and with NCCL."""
GRAPH_SPREAD: Final = 4 * 2**30 // 10
"""Bytes of CUDA graphs, where they count in the share."""


def cache_spread(terms: Iterable[Term], dtype: str, *, joined: bool) -> int:
    """Standard deviation of one card's cache, in bytes: what the other terms leave uncertain.

    Args:
        terms: The engine's terms of one card.
        dtype: How its weights are held.
        joined: Whether more cards share the engine, so that NCCL takes memory.
    """
    shares = {
        "engine weights": WEIGHT_SPREAD.get(dtype, PLAIN_WEIGHT_SPREAD),
        "engine activations": ACTIVATION_SPREAD,
    }
    fixed = {"engine outside torch": NON_TORCH_SPREAD[joined], "CUDA graphs": GRAPH_SPREAD}
    parts = [shares.get(t.name, 0.0) * t.bytes + fixed.get(t.name, 0) for t in terms]
    return int(sqrt(sum(part**2 for part in parts)))


def around(value: float, spread: float) -> tuple[float, float]:
    """The band of a measure whose logarithm has the standard deviation ``spread``.

    >>> [round(edge, 2) for edge in around(10.0, 0.1)]
    [8.48, 11.79]
    """
    return value * exp(-QUANTILE_90 * spread), value * exp(QUANTILE_90 * spread)
