"""What is read off the sums, against numpy on the numbers themselves."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roost.algorithm.mismatch import HUGE, LARGEST, Mismatch, lag_sums, mismatch_sums

pair = st.tuples(st.floats(-15, 0, width=32), st.floats(-15, 0, width=32), st.booleans())


def mismatch(rows: list[tuple[float, float, bool]], parts: int = 1) -> Mismatch:
    """Of (trainer, engine, in the loss), in so many packs."""
    sums: dict[str, float] = defaultdict(float)
    for number in range(parts):
        part = rows[number::parts]
        trainer, engine = (torch.tensor([row[side] for row in part]) for side in (0, 1))
        mask = torch.tensor([row[2] for row in part], dtype=torch.bool)
        for name, value in mismatch_sums(trainer, engine, mask).items():
            sums[name] = max(sums[name], value) if name in LARGEST else sums[name] + value
    return Mismatch.of({**sums, "tokens": 99.0})


@given(rows=st.lists(pair, min_size=1, max_size=40), parts=st.integers(1, 4))
def test_agrees_with_the_numbers(rows: list[tuple[float, float, bool]], parts: int) -> None:
    found = mismatch(rows, parts)
    kept = np.array([(t, e) for t, e, inside in rows if inside], np.float32).reshape(-1, 2)
    d = (kept[:, 0] - kept[:, 1]).astype(np.float64)
    assert found.tokens == len(d)
    if not len(d):
        assert math.isnan(found.mean)
        return
    assert found.mean == pytest.approx(np.abs(d).mean())
    assert found.largest == pytest.approx(np.abs(d).max())
    assert found.sidedness == pytest.approx(d.sum() / max(np.abs(d).sum(), 1e-300))
    assert found.huge_share == pytest.approx((np.abs(d) > HUGE).mean())
    rest = np.abs(d)[np.abs(d) <= HUGE]
    assert found.rest == pytest.approx(rest.mean() if len(rest) else math.inf)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("slope", "noise"), [(1.0, 0.1), (0.6, 0.0), (1.4, 0.3), (0.0, 1.0)])
def test_the_line_is_that_of_least_squares(slope: float, noise: float, parts: int) -> None:
    generator = np.random.default_rng(0)
    engine = -3 * generator.random(500)
    trainer = slope * engine - 1 + noise * generator.standard_normal(500)
    found = mismatch([(t, e, True) for t, e in zip(trainer, engine, strict=True)], parts)
    expected, _ = np.polyfit(engine, trainer, 1)
    assert found.slope == pytest.approx(expected, abs=1e-5)
    correlation = np.corrcoef(engine, trainer)[0, 1] if slope or noise else 0.0
    assert found.scatter == pytest.approx(1 - correlation**2, abs=1e-5)


def test_numbers_that_are_all_equal_have_no_line() -> None:
    """Greedy sampling: the engine is certain of every token."""
    for rounding in (0.0, 1e-5):
        found = mismatch([(-0.5, -rounding, True), (-2.0, 0.0, True), (-1.0, 0.0, True)])
        assert (found.slope, found.scatter) == (1.0, 0.0)


def test_nothing_compared() -> None:
    nothing = mismatch([])
    assert nothing == Mismatch()
    assert (nothing.sidedness, nothing.huge_share, nothing.slope) == (0.0, 0.0, 1.0)


def test_a_number_that_is_not_finite_is_seen() -> None:
    assert math.isnan(mismatch([(math.nan, -1.0, True), (-1.0, -1.0, True)]).mean)
    assert mismatch([(-math.inf, -1.0, True)]).mean == math.inf
    assert mismatch([(math.nan, -1.0, False), (-1.0, -1.0, True)]).mean == 0.0


def test_versions_travel_with_the_sums() -> None:
    assert Mismatch.of(lag_sums(3)).lag == 3
