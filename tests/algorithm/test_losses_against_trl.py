"""The loss and its gradient against TRL's own ``GRPOTrainer._compute_loss`` on the same numbers.

With one micro-batch and one update, all samples scored and none masked for its length, TRL and the
papers agree, so TRL is an independent reference there.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from roost.algorithm.corrections import importance_weights, log_ratios
from roost.algorithm.objective import objective
from roost.training.batch import TrainBatch
from support.loss_cases import BUDGET, Padded, make_batch, make_groups, padded, policy_logprobs


@pytest.fixture(scope="module")
def grpo_trainer() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL's own imports
        from trl import GRPOTrainer

        return GRPOTrainer


def trl_self(rows: Padded, loss: Any, *, corrected: bool = False) -> Any:
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
        use_vllm=corrected,
        vllm_importance_sampling_correction=corrected,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )


def trl_loss(
    trainer_class: Any, rows: Padded, loss: Any, ratio: Tensor | None = None
) -> tuple[Tensor, dict[str, float]]:
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
        "importance_sampling_ratio": ratio,
    }
    stub = trl_self(rows, loss, corrected=ratio is not None)
    result: Tensor = trainer_class._compute_loss(stub, None, inputs)
    return result, {name: values[0] for name, values in stub._metrics["train"].items()}


def our_loss(batch: TrainBatch, logprobs: list[Tensor]) -> tuple[Tensor, Tensor, dict[str, float]]:
    flat = torch.cat(logprobs).requires_grad_()
    tokens = batch.token_batch(batch.samples, batch.counts(batch.samples), torch.device("cpu"))
    weights = our_weights(batch)
    loss, sums = objective(flat, torch.zeros_like(flat), tokens, batch.config.loss, weights)
    [gradient] = torch.autograd.grad(loss, flat)
    return loss.detach().double(), gradient.double(), sums


def our_weights(batch: TrainBatch) -> Tensor | None:
    config = batch.config.decided_correction
    tokens = batch.token_batch(batch.samples, batch.counts(batch.samples), torch.device("cpu"))
    assert tokens.old_logprobs is not None
    return importance_weights(log_ratios(tokens.old_logprobs, tokens, config.level), config)


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


def trl_ratio(trainer_class: Any, rows: Padded, mode: str, low: float, high: float) -> Tensor:
    """TRL's own ratio ``[samples, tokens or 1]``, of a rollout whose results are given.

    Of a trainer that takes anything for granted which these numbers do not depend on.
    """
    count, width = rows.mask.shape
    stub = MagicMock(
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=low,
        vllm_importance_sampling_clip_max=high,
        accelerator=SimpleNamespace(
            device=torch.device("cpu"), process_index=0, gather=lambda value: value
        ),
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        environment_factories=None,
        environments=None,
        tools=None,
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        beta=0.0,
        num_generations=count,
        multi_objective_aggregation="sum_then_normalize",
        scale_rewards="none",
        reward_weights=torch.ones(1),
        reward_func_names=[],
        _pending_extra_logs={},
        _pending_metrics={},
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    stub._tokenizer.pad_token_id = 0
    stub._generate.return_value = (
        [[1, 1]] * count,
        [[1] * width] * count,
        rows.mask.long().tolist(),
        [""] * count,
        rows.engine.tolist(),
        None,
        None,
        None,
    )
    stub._get_per_token_logps_and_entropies.return_value = (rows.old, None, None)
    stub._calculate_rewards.return_value = torch.arange(float(count))[:, None]
    inputs = [{"prompt": "p"}] * count
    results = trainer_class._generate_and_score_completions(stub, inputs)
    ratio: Tensor = results["importance_sampling_ratio"]
    return ratio.double()


BOUNDS = (0.85, 1.15)


def corrected_batch(mode: str, level: str, bounds: tuple[float, float], **loss: Any) -> TrainBatch:
    correction = {"mode": mode, "level": level, "min": bounds[0], "max": bounds[1]}
    return make_batch(make_groups(unscored=False), correction=correction, **loss)


@pytest.mark.parametrize("type_", ["dapo", "grpo", "dr_grpo", "bnpo"])
@pytest.mark.parametrize("importance", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_corrected_token_by_token(
    grpo_trainer: Any, type_: str, importance: str, mode: str
) -> None:
    """Without a KL, which TRL leaves uncorrected."""
    batch = corrected_batch(mode, "token", BOUNDS, type=type_, importance=importance)
    logprobs = policy_logprobs(batch, 0)
    rows = padded(batch, 0, logprobs)
    rows.logprobs.requires_grad_()
    ratio = trl_ratio(grpo_trainer, rows, f"token_{mode}", *BOUNDS)
    bound = BOUNDS[1] if mode == "truncate" else 0.0
    assert float((ratio[rows.mask > 0] == bound).double().mean()) > 0.2
    theirs, _ = trl_loss(grpo_trainer, rows, batch.config.loss, ratio)
    [their_gradient] = torch.autograd.grad(theirs, rows.logprobs)
    ours, gradient, _ = our_loss(batch, logprobs)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-7)
    expected = torch.cat(
        [row[: len(short)] for row, short in zip(their_gradient, logprobs, strict=True)]
    )
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def test_a_completions_weight_is_trls_less_its_length(grpo_trainer: Any) -> None:
    """TRL multiplies the ratios of all tokens; here the weight is their geometric mean."""
    wide = (0.0, 1e6)
    batch = corrected_batch("truncate", "sequence", wide)
    rows = padded(batch, 0, policy_logprobs(batch, 0))
    theirs = trl_ratio(grpo_trainer, rows, "sequence_truncate", *wide).squeeze(1)
    weights = our_weights(batch)
    assert weights is not None
    lengths = [len(sample.sample.token_ids) for sample in batch.samples]
    first = torch.stack([part[0] for part in torch.split(weights.double(), lengths)])
    torch.testing.assert_close(first ** rows.mask.sum(1), theirs, rtol=1e-4, atol=1e-6)
