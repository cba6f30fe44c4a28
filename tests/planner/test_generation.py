"""Seconds of decoding, of a model that can be computed by hand."""

from __future__ import annotations

import pytest

from roost.planner.request import Workload
from support.toy_plans import CACHE_BYTES, MULTIPLIED, timed_plan


def decode(sequences: float, context: float) -> float:
    """Seconds of one decode step; reading weights takes longer than multiplying."""
    cache = sequences * context * CACHE_BYTES / 500e9
    return 2 * MULTIPLIED / 500e9 + cache + 2e-3 + sequences * 1e-4


def test_rollouts_that_are_all_resident() -> None:
    made = timed_plan(Workload(2, 3, 32, 64))
    # Half of a completion is in the cache on average: 32 + 32 tokens. Each prompt is read once.
    prefill = 2 * MULTIPLIED * 2 * 32 / 25e12
    assert made.seconds.passes == 1
    assert made.seconds.generate == pytest.approx(64 * decode(6, 64) + prefill)


def test_rollouts_in_waves_take_turns() -> None:
    made = timed_plan(Workload(2, 3, 32, 64), seqs=2)
    prefill = 2 * MULTIPLIED * 2 * 32 / 25e12
    assert made.seconds.concurrent == 2
    assert made.seconds.generate == pytest.approx(3 * 64 * decode(2, 64) + prefill)


def test_the_longest_completion_is_waited_for() -> None:
    work = Workload(2, 3, 32, 64, mean_completion_tokens=16)
    made = timed_plan(work)
    fixed = 2 * MULTIPLIED / 500e9 + 2e-3
    each = (32 + 8) * CACHE_BYTES / 500e9 + 1e-4
    prefill = 2 * MULTIPLIED * 2 * 32 / 25e12
    assert made.seconds.generate == pytest.approx(64 * fixed + 6 * 16 * each + prefill)
    # Waves as long as the mean are no shorter than the one long completion.
    assert timed_plan(work, seqs=5).seconds.generate >= made.seconds.generate * 0.99
