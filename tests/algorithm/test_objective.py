"""The objective's gradient against exact ones: sums over a whole small vocabulary, in float64.

``test_losses.py`` has its values token by token. Here every token of a vocabulary is a sample of
its own, weighted with the probability that the sampling policy gave it, so that the loss is an
expectation without noise and its gradient can be compared with the mathematics.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from roost.algorithm.objective import TokenBatch, importance_ratio, objective
from roost.config import LossConfig

VOCABULARY = 9


def numbers(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCABULARY, generator=generator, dtype=torch.float64)


def batch(
    old: Tensor,
    advantages: Tensor,
    *,
    reference: Tensor | None = None,
    weights: Tensor | None = None,
    samples: Tensor | None = None,
) -> TokenBatch:
    return TokenBatch(
        advantages=advantages,
        weights=old.exp() if weights is None else weights,
        samples=torch.arange(len(old)) if samples is None else samples,
        old_logprobs=old,
        reference_logprobs=reference,
        engine_logprobs=old,
    )


def gradient(logits: Tensor, tokens: TokenBatch, **loss: Any) -> tuple[Tensor, dict[str, float]]:
    """Of the objective by the logits of the policy."""
    logits = logits.clone().requires_grad_()
    logprobs = torch.log_softmax(logits, dim=-1)
    value, sums = objective(
        logprobs, torch.zeros_like(logprobs), tokens, LossConfig.model_validate(loss)
    )
    [result] = torch.autograd.grad(value, logits)
    return result, sums


def exact(logits: Tensor, expectation: Any) -> Tensor:
    """The gradient of an expectation under the policy of these logits."""
    logits = logits.clone().requires_grad_()
    [result] = torch.autograd.grad(expectation(torch.log_softmax(logits, dim=-1)), logits)
    return result


@pytest.mark.parametrize("importance", ["token", "sequence"])
def test_fresh_samples_give_the_policy_gradient(importance: str) -> None:
    """Of minus the expected advantage: REINFORCE, whatever the clipping."""
    logits, advantages = numbers(0), numbers(1)
    tokens = batch(torch.log_softmax(logits, -1), advantages)
    ours, sums = gradient(logits, tokens, importance=importance)
    expected = exact(logits, lambda logp: -(logp.exp() * advantages).sum())
    torch.testing.assert_close(ours, expected)
    assert (sums["clip_low"], sums["clip_high"]) == (0, 0)


def test_stale_samples_within_the_clip_are_corrected() -> None:
    """Importance sampling: from another policy's samples, this policy's gradient."""
    logits, advantages = numbers(0), numbers(1)
    old = torch.log_softmax(logits + 0.05 * numbers(2), -1)
    ours, sums = gradient(logits, batch(old, advantages), epsilon=0.9, epsilon_high=5.0)
    expected = exact(logits, lambda logp: -(logp.exp() * advantages).sum())
    torch.testing.assert_close(ours, expected)
    assert (sums["clip_low"], sums["clip_high"]) == (0, 0)


@pytest.mark.parametrize("stale", [0.0, 0.3])
def test_the_kl_term_gives_the_gradient_of_the_divergence(stale: float) -> None:
    """Also from stale samples: what its weighting by the ratio is for."""
    logits, reference = numbers(0), torch.log_softmax(numbers(3), -1)
    old = torch.log_softmax(logits + stale * numbers(2), -1)
    tokens = batch(old, torch.zeros(VOCABULARY, dtype=torch.float64), reference=reference)
    ours, sums = gradient(logits, tokens, beta=0.3)

    def divergence(logp: Tensor) -> Tensor:
        return 0.3 * (logp.exp() * (logp - reference)).sum()

    torch.testing.assert_close(ours, exact(logits, divergence))
    gap = reference - torch.log_softmax(logits, -1)
    assert sums["kl"] == pytest.approx(float((gap.exp() - gap - 1).sum()))


@pytest.mark.parametrize(
    ("shift", "advantage", "learns"),
    [
        pytest.param(0.25, 1.0, False, id="good-and-raised-enough"),
        pytest.param(0.25, -1.0, True, id="bad-and-raised"),
        pytest.param(-0.25, -1.0, False, id="bad-and-lowered-enough"),
        pytest.param(-0.25, 1.0, True, id="good-and-lowered"),
        pytest.param(0.1, 1.0, True, id="good-and-raised-a-little"),
    ],
)
def test_clipping_stops_only_what_went_far_enough(
    shift: float, advantage: float, learns: bool
) -> None:
    """With epsilon 0.2: of a ratio of exp(0.25) = 1.28 or exp(-0.25) = 0.78."""
    old = torch.tensor([-1.0], dtype=torch.float64)
    tokens = batch(old, torch.tensor([advantage], dtype=torch.float64), weights=torch.ones(1))
    logprobs = (old + shift).requires_grad_()
    value, _ = objective(logprobs, torch.zeros(1), tokens, LossConfig())
    [slope] = torch.autograd.grad(value, logprobs)
    expected = -advantage * torch.exp(torch.tensor(shift, dtype=torch.float64)) if learns else 0.0
    assert float(slope) == pytest.approx(float(expected))


def test_delta_bounds_what_the_clip_leaves() -> None:
    """A bad token made ten times likelier pulls with 10, and with delta = 3 not at all."""
    old = torch.tensor([-4.0], dtype=torch.float64)
    tokens = batch(old, torch.tensor([-1.0], dtype=torch.float64), weights=torch.ones(1))

    def value_and_slope(delta: float | None) -> tuple[float, float]:
        logprobs = (old + torch.log(torch.tensor(10.0))).requires_grad_()
        value, _ = objective(logprobs, torch.zeros(1), tokens, LossConfig(delta=delta))
        return value.item(), float(torch.autograd.grad(value, logprobs)[0])

    assert value_and_slope(None) == pytest.approx((10.0, 10.0))
    assert value_and_slope(3.0) == pytest.approx((3.0, 0.0))


def test_a_sequence_has_one_ratio_the_geometric_mean_of_its_tokens() -> None:
    ratios = torch.tensor([2.0, 8.0, 1.0, 0.25, 3.0], dtype=torch.float64)
    samples = torch.tensor([0, 0, 1, 1, 2])
    old = torch.full((5,), -3.0, dtype=torch.float64)
    tokens = batch(old, torch.ones(5), weights=torch.ones(5), samples=samples)
    ours = importance_ratio(old + ratios.log(), old, tokens, "sequence")
    expected = torch.tensor([4.0, 4.0, 0.5, 0.5, 3.0], dtype=torch.float64)
    torch.testing.assert_close(ours, expected)
    by_token = importance_ratio(old + ratios.log(), old, tokens, "token")
    torch.testing.assert_close(by_token, ratios)


def test_tokens_that_do_not_count_are_not_in_a_sequences_ratio() -> None:
    """A tool's token, with weight 0, between two of the model's."""
    ratios = torch.tensor([2.0, 1000.0, 8.0], dtype=torch.float64)
    old = torch.full((3,), -3.0, dtype=torch.float64)
    weights, samples = torch.tensor([1.0, 0.0, 1.0]), torch.zeros(3, dtype=torch.int64)
    tokens = batch(old, torch.ones(3), weights=weights, samples=samples)
    ours = importance_ratio(old + ratios.log(), old, tokens, "sequence")
    torch.testing.assert_close(ours[[0, 2]], torch.full((2,), 4.0, dtype=torch.float64))


def test_no_tokens_no_loss() -> None:
    empty = torch.zeros(0, dtype=torch.float64)
    tokens = batch(empty, empty, samples=torch.zeros(0, dtype=torch.int64))
    for importance in ("token", "sequence"):
        loss = LossConfig.model_validate({"importance": importance})
        value, sums = objective(empty.clone().requires_grad_(), empty, tokens, loss)
        assert (value.item(), sums["tokens"]) == (0.0, 0.0)
