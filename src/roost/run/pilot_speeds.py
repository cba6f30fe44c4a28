"""Speeds fitted to calls of the engine whose work and seconds are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from roost.planner.measured import Speeds


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the engine: what it did and how long that took."""

    prompt_tokens: float
    steps: float
    tokens: float
    """Rows of all steps."""
    context: float
    """Tokens that all rows of all steps looked back at."""
    seconds: float


def decoding_speeds(calls: Sequence[Call]) -> dict[str, float]:
    """Least squares over relative errors, no term negative."""
    work = np.array([[c.prompt_tokens, c.steps, c.tokens, c.context] for c in calls])
    seconds = np.array([call.seconds for call in calls])
    fitted = non_negative(work / seconds[:, None], np.ones(len(calls)))
    names = ("prefill_token_s", "decode_step_s", "decode_row_s", "decode_context_s")
    return dict(zip(names, fitted, strict=True))


def non_negative(rows: Any, target: Any) -> list[float]:
    """Non-negative least squares: the best of all subsets of columns, which here are few."""
    count = rows.shape[1]
    best, least = np.zeros(count), np.inf
    for mask in range(1, 2**count):
        chosen = [i for i in range(count) if mask >> i & 1]
        found, *_ = np.linalg.lstsq(rows[:, chosen], target, rcond=None)
        error = float(np.sum((rows[:, chosen] @ found - target) ** 2))
        if (found >= 0).all() and error < least:
            best, least = np.zeros(count), error
            best[chosen] = found
    return [float(value) for value in best]


def decoding_error(calls: Sequence[Call], speeds: Speeds) -> float:
    """Mean relative error of the speeds on the calls that they were fitted to."""
    errors = []
    for call in calls:
        seconds = (
            speeds.prefill_token_s * call.prompt_tokens
            + speeds.decode_step_s * call.steps
            + speeds.decode_row_s * call.tokens
            + speeds.decode_context_s * call.context
        )
        errors.append(abs(seconds / call.seconds - 1))
    return fmean(errors)
