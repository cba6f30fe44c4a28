"""Bands: variances of independent terms add, and 1.645 deviations hold 90 %."""

from __future__ import annotations

from math import log, sqrt
from statistics import NormalDist

import pytest

from roost.planner.bands import (
    ACTIVATION_SPREAD,
    GRAPH_SPREAD,
    NON_TORCH_SPREAD,
    PLAIN_WEIGHT_SPREAD,
    QUANTILE_90,
    WEIGHT_SPREAD,
    around,
    cache_spread,
)
from roost.planner.terms import Term

TERMS = (
    Term("engine weights", 10**9, ""),
    Term("key-value cache", 10**12, ""),
    Term("engine activations", 10**8, ""),
    Term("engine outside torch", 5, ""),
)


def test_the_quantile_holds_ninety_per_cent() -> None:
    normal = NormalDist()
    assert normal.cdf(QUANTILE_90) - normal.cdf(-QUANTILE_90) == pytest.approx(0.9, abs=1e-3)


def test_a_band_is_symmetric_in_its_logarithm() -> None:
    low, high = around(8.0, 0.2)
    assert log(high / 8) == pytest.approx(1.645 * 0.2)
    assert low * high == pytest.approx(64)
    assert around(8.0, 0.0) == (8.0, 8.0)


@pytest.mark.parametrize("joined", [False, True])
def test_spreads_add_as_variances(joined: bool) -> None:
    parts = (PLAIN_WEIGHT_SPREAD * 1e9, ACTIVATION_SPREAD * 1e8, NON_TORCH_SPREAD[joined])
    expected = sqrt(sum(part**2 for part in parts))
    assert cache_spread(TERMS, "bfloat16", joined=joined) == pytest.approx(expected, abs=1)


def test_graphs_and_four_bits_widen_a_band() -> None:
    plain = cache_spread(TERMS, "bfloat16", joined=False)
    packed = cache_spread(TERMS, "nf4", joined=False)
    graphs = cache_spread((*TERMS, Term("CUDA graphs", 1, "")), "bfloat16", joined=False)
    wider = (WEIGHT_SPREAD["nf4"] * 1e9) ** 2 - (PLAIN_WEIGHT_SPREAD * 1e9) ** 2
    assert packed**2 - plain**2 == pytest.approx(wider, rel=1e-3)
    assert graphs**2 - plain**2 == pytest.approx(GRAPH_SPREAD**2, rel=1e-3)
