"""Sampling against a float64 reference written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.engines.embedded.sampling import sample
from roost.engines.protocol import SamplingParams

JUST_BELOW_ONE = 1 - 2**-53


def reference_kept(logits, sampling):
    """Probabilities at the temperature, the tokens that truncation keeps, and how near the nearest
    decision was to going the other way; all in float64."""
    scaled = logits.astype(np.float64) / sampling.temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    slack = math.inf
    if sampling.top_k:
        order = order[: sampling.top_k]
    share = p[order] / p[order].sum()
    if sampling.top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(share)[:-1]])
        slack = np.abs(before - sampling.top_p).min()
        order = order[(before < sampling.top_p) | (np.arange(len(order)) == 0)]
    least = sampling.min_p * p.max()
    slack = min(slack, np.abs(p[order[1:]] / p.max() - sampling.min_p).min(initial=math.inf))
    return p, set(order[p[order] >= least].tolist()), slack


samplings = st.builds(
    SamplingParams,
    max_completion_tokens=st.just(1),
    temperature=st.floats(0.2, 3.0),
    top_p=st.sampled_from([1.0, 0.999, 0.95, 0.5, 0.05, 1e-6]),
    top_k=st.sampled_from([0, 1, 2, 10, 299, 1000]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)


@settings(max_examples=200, deadline=None)
@given(
    samplings,
    st.integers(0, 10**6),
    st.sampled_from([3, 40, 300, 700]),
    st.floats(0.1, 8.0),
    st.sampled_from([0.0, 0.3, 0.77, JUST_BELOW_ONE]),
)
def test_draws_agree_with_the_reference(sampling, seed, vocabulary, spread, uniform):
    logits = spread * np.random.default_rng(seed).standard_normal((3, vocabulary))
    logits = logits.astype(np.float32)
    draw = sample(torch.from_numpy(logits), [uniform] * 3, sampling)
    for row in range(3):
        p, kept, slack = reference_kept(logits[row], sampling)
        token = draw.tokens[row]
        full = draw.logprobs[row] + draw.kept_mass_logs[row]
        assert abs(full - math.log(p[token])) < 1e-4
        if slack > 2e-6:  # nearer than that, float32 may decide otherwise
            assert token in kept
            assert abs(draw.kept_mass_logs[row] - math.log(p[list(kept)].sum())) < 1e-5


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 0.999999, JUST_BELOW_ONE, 1.0])
@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 1e-3}, {"temperature": 0}]
)
def test_a_token_of_probability_zero_is_never_drawn(uniform, options):
    logits = torch.full((1, 6), -math.inf)
    logits[0, 2], logits[0, 4] = 1.0, 0.5
    draw = sample(logits, [uniform], SamplingParams(1, **options))
    assert draw.tokens[0] in (2, 4)
    assert math.isfinite(draw.logprobs[0])


@pytest.mark.parametrize("options", [{}, {"top_k": 6}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_frequencies_are_the_probabilities(options):
    """Chi-square with at most 11 degrees of freedom: 31.3 is exceeded once in a thousand."""
    rng = np.random.default_rng(5)
    logits = rng.standard_normal(12).astype(np.float32)
    sampling = SamplingParams(1, temperature=1.3, **options)
    count = 40_000
    draw = sample(torch.from_numpy(logits).repeat(count, 1), rng.random(count).tolist(), sampling)
    p, kept, _ = reference_kept(logits, sampling)
    tokens = sorted(kept)
    expected = count * p[tokens] / p[tokens].sum()
    observed = np.bincount(draw.tokens, minlength=12)
    assert observed.sum() == observed[tokens].sum()
    assert ((observed[tokens] - expected) ** 2 / expected).sum() < 31.3


def test_every_token_comes_at_its_own_level():
    """Sweeping the uniform visits tokens in order, each for its share of the way."""
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()[None]
    levels = [0.05, 0.15, 0.25, 0.35, 0.55, 0.65, 0.95]
    draw = sample(logits.repeat(len(levels), 1), levels, SamplingParams(1))
    assert draw.tokens == [0, 1, 1, 2, 2, 3, 3]


def test_rows_do_not_share_their_fate():
    """A flat row needs the whole vocabulary sorted; its neighbours' draws do not change."""
    rng = np.random.default_rng(0)
    peaked = torch.from_numpy(6 * rng.standard_normal((2, 2000)).astype(np.float32))
    flat = torch.zeros(1, 2000) + 1e-3 * torch.arange(2000)
    sampling = SamplingParams(1, top_p=0.9)
    alone = sample(peaked, [0.4, 0.9], sampling)
    mixed = sample(torch.cat([peaked[:1], flat, peaked[1:]]), [0.4, 0.99, 0.9], sampling)
    assert mixed.tokens[::2] == alone.tokens
    assert mixed.logprobs[::2] == alone.logprobs
    assert abs(math.exp(mixed.kept_mass_logs[1]) - 0.9) < 1e-3
