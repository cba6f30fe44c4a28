"""Sampled tokens of a whole vocabulary's distribution, as trainers and faulty engines see them.

Numbers only, float64: each fault changes the distribution that is drawn from and reported, as it
would in an engine, and the trainer scores what was drawn under the true one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from roost.algorithm.mismatch import Mismatch, mismatch_sums

POSITIONS, VOCABULARY = 3000, 300
Engine = Callable[[Tensor], Tensor]
"""From logits ``[positions, vocabulary]`` to the log-probabilities that it draws from."""


def logits(least: float, most: float, seed: int = 0) -> Tensor:
    """``[positions, vocabulary]``, of a spread between two bounds: small is flat, large certain."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.rand(POSITIONS, 1, generator=generator, dtype=torch.float64)
    spread = torch.exp(math.log(least) + place * math.log(most / least))
    noise = torch.randn(POSITIONS, VOCABULARY, generator=generator, dtype=torch.float64)
    return spread * noise


def sampled(scores: Tensor, engine: Engine, seed: int = 1) -> tuple[Tensor, Tensor]:
    """``[positions]`` log-probabilities of drawn tokens: the trainer's and the engine's."""
    generator = torch.Generator().manual_seed(seed)
    reported = engine(scores)
    drawn = torch.multinomial(reported.exp(), 1, generator=generator)
    own = torch.log_softmax(scores, -1)
    return own.gather(1, drawn).squeeze(1), reported.gather(1, drawn).squeeze(1)


def mismatch(trainer: Tensor, engine: Tensor, lag: int = 0) -> Mismatch:
    """Of all these tokens."""
    every = torch.ones_like(trainer, dtype=torch.bool)
    return Mismatch.of({**mismatch_sums(trainer, engine, every), "mismatch/lag": float(lag)})


def at_temperature(temperature: float) -> Engine:
    """Draws at this temperature where the trainer scores at 1."""
    return lambda scores: torch.log_softmax(scores / temperature, -1)


def top_k(count: int) -> Engine:
    """Draws from, and renormalises over, the likeliest tokens."""

    def engine(scores: Tensor) -> Tensor:
        least = scores.topk(count, -1).values[:, -1:]
        return torch.log_softmax(scores.masked_fill(scores < least, -math.inf), -1)

    return engine


def top_p(mass: float) -> Engine:
    """Likewise, those that hold this probability."""

    def engine(scores: Tensor) -> Tensor:
        ordered, places = torch.softmax(scores, -1).sort(-1, descending=True)
        dropped = torch.zeros_like(scores, dtype=torch.bool)
        dropped.scatter_(1, places, ordered.cumsum(-1) - ordered >= mass)
        return torch.log_softmax(scores.masked_fill(dropped, -math.inf), -1)

    return engine


def moved_weights(size: float) -> Engine:
    """Logits that are off by so many of their own standard deviations, each by itself."""

    def engine(scores: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        noise = torch.randn(scores.shape, generator=generator, dtype=scores.dtype)
        return torch.log_softmax(scores + size * scores.std(1, keepdim=True) * noise, -1)

    return engine


def unrelated_weights(scores: Tensor) -> Tensor:
    """What another model says, as sure of itself as this one."""
    return torch.log_softmax(scores.flip(1), -1)


def rounding(size: float) -> Engine:
    """Logits rounded otherwise, by so many nats."""

    def engine(scores: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        noise = torch.randn(scores.shape, generator=generator, dtype=scores.dtype)
        return torch.log_softmax(scores + size * noise, -1)

    return engine
