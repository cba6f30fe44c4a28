"""The loss and its gradient against TRL's own ``GRPOTrainer._compute_loss`` on the same numbers.

With one micro-batch and one update, all samples scored and none masked for its length, TRL and the
papers agree, so TRL is an independent reference there.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from roost.algorithm.objective import objective
from roost.training.batch import TrainBatch
from support.loss_cases import BUDGET, Padded, make_batch, make_groups, padded, policy_logprobs


@pytest.fixture(scope="module")
def grpo_trainer() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL's own imports
        from trl import GRPOTrainer

        return GRPOTrainer


def trl_self(rows: Padded, loss: Any) -> Any:
    """What ``_compute_loss`` reads of its trainer; the model's scores are given."""
    entropies = torch.zeros_like(rows.logprobs)
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (rows.logprobs, entropies, None),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        args=SimpleNamespace(delta=loss.delta, use_bias_correction_kl=True, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=BUDGET,
        loss_type=loss.type,
        importance_sampling_level=loss.importance,
        beta=loss.beta,
        epsilon_low=loss.epsilon,
        epsilon_high=loss.epsilon if loss.epsilon_high is None else loss.epsilon_high,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )


def trl_loss(trainer_class: Any, rows: Padded, loss: Any) -> tuple[Tensor, dict[str, float]]:
    count = len(rows.mask)
    inputs = {
        "prompt_ids": torch.ones(count, 2, dtype=torch.int64),
        "prompt_mask": torch.ones(count, 2, dtype=torch.int64),
        "completion_ids": torch.ones_like(rows.mask, dtype=torch.int64),
        "completion_mask": torch.ones_like(rows.mask),
        "tool_mask": rows.mask,
        "advantages": rows.advantages,
        "old_per_token_logps": rows.old,
        "ref_per_token_logps": rows.reference,
        "num_items_in_batch": rows.mask.sum(),
    }
    stub = trl_self(rows, loss)
    result: Tensor = trainer_class._compute_loss(stub, None, inputs)
    return result, {name: values[0] for name, values in stub._metrics["train"].items()}


def our_loss(batch: TrainBatch, logprobs: list[Tensor]) -> tuple[Tensor, Tensor, dict[str, float]]:
    flat = torch.cat(logprobs).requires_grad_()
    tokens = batch.token_batch(batch.samples, batch.counts(batch.samples), torch.device("cpu"))
    loss, sums = objective(flat, torch.zeros_like(flat), tokens, batch.config.loss)
    [gradient] = torch.autograd.grad(loss, flat)
    return loss.detach().double(), gradient.double(), sums


@pytest.mark.parametrize("type_", ["dapo", "grpo", "dr_grpo", "bnpo"])
@pytest.mark.parametrize("importance", ["token", "sequence"])
@pytest.mark.parametrize("delta", [None, 1.6])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_loss_and_gradient(
    grpo_trainer: Any, type_: str, importance: str, delta: float | None, beta: float
) -> None:
    batch = make_batch(
        make_groups(unscored=False),
        type=type_,
        importance=importance,
        delta=delta,
        beta=beta,
        epsilon_high=0.28,
    )
    logprobs = policy_logprobs(batch, 0)
    rows = padded(batch, 0, logprobs)
    rows.logprobs.requires_grad_()
    theirs, metrics = trl_loss(grpo_trainer, rows, batch.config.loss)
    [their_gradient] = torch.autograd.grad(theirs, rows.logprobs)
    ours, gradient, sums = our_loss(batch, logprobs)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-7)
    expected = torch.cat(
        [row[: len(short)] for row, short in zip(their_gradient, logprobs, strict=True)]
    )
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    if importance == "token":
        # TRL counts clipped samples at the sequence level, not tokens, and weights its KL by ratio.
        low = sums["clip_low"] / sums["tokens"]
        assert low == pytest.approx(metrics["clip_ratio/low_mean"], rel=1e-6)
        high = sums["clip_high"] / sums["tokens"]
        assert high == pytest.approx(metrics["clip_ratio/high_mean"], rel=1e-6)
