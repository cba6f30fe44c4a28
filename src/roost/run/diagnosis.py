"""What an engine does wrong, told by how its log-probabilities differ from the trainer's.

Each fault leaves a pattern of its own in the sums of a ``Mismatch``; the thresholds stand beside it
and were chosen on simulated faults over distributions from nearly certain to nearly flat
(``tests/run/test_diagnosis.py`` makes each). A diagnosis is the likeliest cause, not a proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from roost.algorithm.mismatch import HUGE, Mismatch

ONE_SIDED = 0.95
"""Sum of differences by sum of their sizes: truncation gives -1 exactly, rounding moves it."""
FOLLOWS = 0.75
"""Largest scatter with which the trainer's numbers still follow the engine's where all differences
have one sign. Numbers of unrelated weights may be one-sided too, and scatter wholly."""
TILTED = 0.02
"""Least distance of the slope from 1 that counts."""
LINEAR = 0.75
"""Most scatter, as a part of that distance. Other weights flatten the slope only by scattering."""
ON_A_LINE = 0.5
"""Most scatter of numbers that lie along a line at all."""
FEW = 0.2
"""Largest share of huge differences that is an exception and not the rule."""
NEAR = 3.0
"""Times the limit up to which other kernels are likelier than other weights."""


class Cause(NamedTuple):
    """A fault, its pattern and what to do about it."""

    name: str
    fits: Callable[[Mismatch, float], bool]
    """Given the mismatch and the limit on its mean."""
    describe: Callable[[Mismatch], str]
    """What was seen, and where to look."""


def diagnose(mismatch: Mismatch, limit: float) -> str:
    """The likeliest cause of a mismatch, what speaks for it, and where to look: two sentences.

    Args:
        mismatch: With a mean above the limit.
        limit: Largest mean difference that is rounding, in nats a token.
    """
    cause = likeliest(mismatch, limit)
    return f"Likeliest cause: {cause.name}. {cause.describe(mismatch)}"


def likeliest(mismatch: Mismatch, limit: float) -> Cause:
    """The first cause that fits: those that leave a sharp pattern come before those that do not."""
    return next(cause for cause in CAUSES if cause.fits(mismatch, limit))


def _one_sided(mismatch: Mismatch, limit: float) -> bool:
    follows = mismatch.slope > 0 and mismatch.scatter <= FOLLOWS
    return abs(mismatch.sidedness) >= ONE_SIDED and follows


def _tilted(mismatch: Mismatch, limit: float) -> bool:
    distance = abs(mismatch.slope - 1.0)
    most = min(LINEAR * distance, ON_A_LINE)
    return distance > TILTED and mismatch.scatter < most


def _few_huge(mismatch: Mismatch, limit: float) -> bool:
    return 0 < mismatch.huge_share <= FEW and mismatch.rest <= limit


CAUSES = (
    Cause(
        "numbers that are not finite",
        lambda m, limit: not math.isfinite(m.distance),
        lambda m: (
            "Engine or trainer gave a log-probability of NaN or infinity: one of them overflowed, "
            "or the weights hold a value that is not finite."
        ),
    ),
    Cause(
        "a stale version",
        lambda m, limit: m.lag > 0,
        lambda m: (
            f"Tokens were sampled up to {m.lag:.0f} versions before the policy that scores them: "
            "the engine missed a sync."
        ),
    ),
    Cause(
        "retokenisation",
        _few_huge,
        lambda m: (
            f"{m.huge_share:.1%} of the tokens differ by more than {HUGE:g} nats and the others by "
            f"{m.rest:.2g}: a few tokens are not those that the engine drew. Look for text that is "
            "decoded and tokenised again on the way."
        ),
    ),
    Cause(
        "sampler settings that truncate",
        _one_sided,
        lambda m: (
            f"The engine finds nearly every token {'more' if m.difference < 0 else 'less'} likely "
            "than the trainer does: the two compare a distribution cut down to its likeliest "
            "tokens with the whole one. Look for top_p, top_k or min_p in the engine, also in the "
            "model's generation_config.json."
        ),
    ),
    Cause(
        "another temperature",
        _tilted,
        lambda m: (
            "Trainer's log-probabilities follow the engine's along a line of slope "
            f"{m.slope:.2f}: it samples at a {'higher' if m.slope > 1 else 'lower'} temperature "
            "than rollout.temperature, or a penalty reshapes its distribution."
        ),
    ),
    Cause(
        "kernels",
        lambda m, limit: m.mean <= NEAR * limit,
        lambda m: (
            f"Differences lie on both sides and are small ({m.largest:.2g} nats at most): the "
            "engine rounds more than the trainer does. Look for quantised weights or cache, or "
            "kernels of lower precision, in the engine."
        ),
    ),
    Cause(
        "wrong weights",
        lambda m, limit: True,
        lambda m: (
            f"Differences are wide and without a pattern (up to {m.largest:.2g} nats): the engine "
            "samples from other weights than those being trained, or computes another function of "
            "them."
        ),
    ),
)
"""In the order in which they are tried; the last fits always."""
