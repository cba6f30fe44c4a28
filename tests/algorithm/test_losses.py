"""The objective and its token weights against the plain float64 padded implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from roost.algorithm.corrections import importance_weights, log_ratios
from roost.algorithm.losses import TOKEN_WEIGHTS, LossCounts
from roost.algorithm.objective import TokenBatch, objective
from roost.samples import Group
from roost.training.batch import TrainBatch
from support.loss_cases import make_batch, make_groups, padded, plain_loss, policy_logprobs

TYPES = tuple(TOKEN_WEIGHTS)


def ours(
    batch: TrainBatch, part: int, logprobs: list[Tensor]
) -> tuple[Tensor, list[Tensor], dict[str, float]]:
    """Loss, its gradient by sample, and the sums, through the package."""
    flat = torch.cat(logprobs).requires_grad_()
    members = batch.parts[part]
    tokens = batch.token_batch(members, batch.counts(members), torch.device("cpu"))
    loss, sums = objective(
        flat, torch.zeros_like(flat), tokens, batch.config.loss, weights_of(tokens, batch, flat)
    )
    [gradient] = torch.autograd.grad(loss, flat)
    return loss.detach(), list(gradient.split([len(row) for row in logprobs])), sums


def weights_of(tokens: TokenBatch, batch: TrainBatch, logprobs: Tensor) -> Tensor | None:
    """The correction, as the trainer takes it."""
    sampled_under = logprobs.detach() if tokens.old_logprobs is None else tokens.old_logprobs
    config = batch.config.decided_correction
    return importance_weights(log_ratios(sampled_under, tokens, config.level), config)


def plain(batch: TrainBatch, part: int, logprobs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    rows = padded(batch, part, logprobs)
    rows.logprobs.requires_grad_()
    loss = plain_loss(rows, batch)
    [gradient] = torch.autograd.grad(loss, rows.logprobs)
    return loss.detach(), [row[: len(short)] for row, short in zip(gradient, logprobs, strict=True)]


def assert_alike(batch: TrainBatch) -> None:
    for part in range(len(batch.parts)):
        logprobs = policy_logprobs(batch, part)
        loss, gradients, _ = ours(batch, part, logprobs)
        expected, expected_gradients = plain(batch, part, logprobs)
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-7)
        got, wanted = torch.cat(gradients).double(), torch.cat(expected_gradients)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-7)
        assert wanted.abs().max() > 1e-3


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("importance", ["token", "sequence"])
@pytest.mark.parametrize("delta", [None, 1.6])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("mask_truncated", [False, True])
def test_loss_and_gradient(
    type_: str, importance: str, delta: float | None, beta: float, mask_truncated: bool
) -> None:
    batch = make_batch(
        make_groups(),
        type=type_,
        importance=importance,
        delta=delta,
        beta=beta,
        mask_truncated=mask_truncated,
    )
    assert_alike(batch)


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("importance", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_corrected_loss_and_gradient(
    type_: str, importance: str, mode: str, level: str, beta: float
) -> None:
    """With bounds that some tokens and completions leave on either side."""
    correction = {"mode": mode, "level": level, "min": 0.85, "max": 1.15}
    batch = make_batch(
        make_groups(), type=type_, importance=importance, beta=beta, correction=correction
    )
    assert_alike(batch)


@pytest.mark.parametrize("type_", TYPES)
def test_a_batch_of_several_updates(type_: str) -> None:
    """Parts of unequal token counts, an unequal bound above."""
    assert_alike(make_batch(make_groups(), updates=3, type=type_, epsilon_high=0.28))


@pytest.mark.parametrize("importance", ["token", "sequence"])
def test_the_policy_that_sampled_has_ratio_one(importance: str) -> None:
    """Then the loss is minus the weighted advantages, and so is the gradient."""
    batch = make_batch(make_groups(tools=False), importance=importance)
    for sample in batch.samples:
        sample.old_logprobs = None
    logprobs = [-torch.rand(len(s.sample.token_ids)) for s in batch.samples]
    loss, gradients, sums = ours(batch, 0, logprobs)
    advantages = [
        torch.full_like(row, s.sample.advantage)
        for row, s in zip(logprobs, batch.samples, strict=True)
    ]
    expected = -torch.cat(advantages) / batch.tokens
    torch.testing.assert_close(torch.cat(gradients), expected)
    torch.testing.assert_close(loss, expected.sum())
    assert sums["clip_low"] == sums["clip_high"] == 0.0


def test_clipped_tokens_are_counted_on_the_side_that_the_clip_acts() -> None:
    [group] = make_groups(unscored=False, tools=False)[:1]
    batch = make_batch([group])
    for sample, advantage in zip(group.samples, (1.0, -1.0, 1.0), strict=True):
        sample.advantage = advantage
    shifts = ([0.5, -0.5, 0.1], [-0.5], [0.0, 0.5, 0.5, -0.1, 0.1, 0.1, -0.9])
    logprobs = [
        sample.old_logprobs + torch.tensor(shift)
        for sample, shift in zip(batch.samples, shifts, strict=True)
    ]
    _, gradients, sums = ours(batch, 0, logprobs)
    assert (sums["tokens"], sums["clip_high"], sums["clip_low"]) == (11.0, 3.0, 1.0)
    assert sum(int((g == 0).sum()) for g in gradients) == 4


@pytest.mark.parametrize("importance", ["token", "sequence"])
def test_tokens_outside_the_loss_cannot_reach_it(importance: str) -> None:
    """However unlikely a tool's tokens are to the policy, to the old one, or to the reference."""
    batch = make_batch(make_groups(), importance=importance, beta=0.1)
    logprobs = policy_logprobs(batch, 0)
    loss, gradients, sums = ours(batch, 0, logprobs)
    for row, sample in zip(logprobs, batch.samples, strict=True):
        outside = ~torch.tensor(sample.loss_tokens)
        row[outside] = -400.0
        assert sample.old_logprobs is not None
        sample.old_logprobs[outside] = -200.0
    far_loss, far_gradients, far_sums = ours(batch, 0, logprobs)
    torch.testing.assert_close(far_loss, loss)
    torch.testing.assert_close(far_gradients, gradients)
    assert far_sums == pytest.approx(sums)


def test_kl_counts_loss_tokens_only() -> None:
    batch = make_batch(make_groups(), beta=0.1)
    logprobs = policy_logprobs(batch, 0)
    rows = padded(batch, 0, logprobs)
    gap = rows.reference - rows.logprobs
    expected = ((torch.exp(gap) - gap - 1) * rows.mask).sum()
    assert ours(batch, 0, logprobs)[2]["kl"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("type_", "weight"),
    [("dapo", 3 / 60), ("grpo", 1 / 32), ("dr_grpo", 1 / 400), ("bnpo", 1 / 25)],
)
def test_token_weights_by_hand(type_: str, weight: float) -> None:
    counts = LossCounts(
        update_samples=4,
        update_tokens=25,
        batch_tokens=60,
        updates=3,
        max_completion_tokens=100,
    )
    assert TOKEN_WEIGHTS[type_](8, counts) == pytest.approx(weight)


def test_what_does_not_count_is_left_out_of_the_batch() -> None:
    groups: list[Group] = make_groups()
    groups[0].samples[1].token_ids, groups[0].samples[1].sources = [], []
    kept: Any = [(s.group, s.sample.index) for s in make_batch(groups).samples]
    everything = {(g, i) for g in range(4) for i in range(3)}
    assert set(kept) == everything - {(0, 1), (2, 1)}
    masked = make_batch(groups, mask_truncated=True)
    assert {(s.group, s.sample.index) for s in masked.samples} == set(kept) - {(1, 0), (1, 2)}
    assert masked.tokens == sum(sum(s.loss_tokens) for s in masked.samples)
