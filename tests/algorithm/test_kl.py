"""k3 against the KL divergence itself, summed over a whole vocabulary in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from roost.algorithm.kl import k3


def distributions(seed: int, spread: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of a policy and a reference over 50 tokens."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(2, 50, generator=generator, dtype=torch.float64)
    policy, reference = torch.log_softmax(logits, dim=-1)
    return policy, reference


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_its_mean_over_the_policys_tokens_is_the_divergence(seed: int, spread: float) -> None:
    policy, reference = distributions(seed, spread)
    exact = (policy.exp() * (policy - reference)).sum()
    torch.testing.assert_close((policy.exp() * k3(policy, reference)).sum(), exact)
    assert exact > 0


def test_of_equal_distributions_it_is_zero_for_every_token() -> None:
    policy, _ = distributions(0, 1.0)
    assert not k3(policy, policy).any()


@given(st.floats(-30, 0), st.floats(-30, 0))
def test_no_token_gives_less_than_nothing(logprob: float, reference: float) -> None:
    value = float(
        k3(torch.tensor(logprob, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64))
    )
    gap = reference - logprob
    assert value >= 0
    assert value == pytest.approx(math.exp(gap) - gap - 1, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("gap", [-1e-2, -1e-3, -1e-4, 1e-4, 1e-3, 1e-2])
def test_a_policy_close_to_its_reference_is_measured_in_float32(gap: float) -> None:
    """As at the start of training, where exp(gap) - gap - 1 would be rounding alone."""
    value = float(k3(torch.tensor(0.0), torch.tensor(gap)))
    assert value == pytest.approx(gap**2 / 2 + gap**3 / 6 + gap**4 / 24, rel=2e-3)


def test_its_gradient_is_that_of_the_estimate() -> None:
    """1 - exp(ref - logp): what pulls a token towards the reference."""
    logprob = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-2.0, -1.5], dtype=torch.float64)
    [gradient] = torch.autograd.grad(k3(logprob, reference).sum(), logprob)
    expected = torch.tensor([1 - math.exp(-1.0), 1 - math.exp(0.5)], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected)
