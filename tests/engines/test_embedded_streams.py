"""Random streams: repeatable, uniform, and no two alike."""

from __future__ import annotations

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roost.engines.embedded.streams import uniforms
from roost.engines.protocol import SampleKey

words = st.integers(0, 2**64 - 1)
keys = st.builds(SampleKey, seed=words, step=words, prompt_id=words, index=words)


def draws(key, count):
    return list(islice(uniforms(key), count))


@given(keys)
def test_a_key_always_draws_the_same(key):
    longer = draws(key, 300)
    assert draws(key, 70) == longer[:70]
    assert all(0 <= u < 1 for u in longer)


@given(keys, keys)
def test_other_keys_draw_otherwise(a, b):
    assert (draws(a, 8) == draws(b, 8)) == (a == b)


def test_streams_are_uniform_within_and_across():
    """Chi-square over 20 bins, 19 degrees of freedom: 43.8 is exceeded once in a thousand."""
    within = draws(SampleKey(0, 0, 0, 0), 20_000)
    across = [draws(SampleKey(7, 3, p, i), 1)[0] for p in range(200) for i in range(100)]
    for values in (within, across):
        counts, _ = np.histogram(values, bins=20, range=(0, 1))
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.8
