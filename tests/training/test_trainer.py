"""Whole updates of a batch against float64 padded ones, and what the trainer says of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roost.model.policy import Policy
from roost.samples import FinishReason, Group, TokenSource
from roost.training.batch import TrainBatch
from roost.training.trainer import PROOF_SAMPLES, Trainer
from support.groups import random_groups
from support.plain_update import Member, padded_logprobs, plain_gradient_of_update
from support.small_models import build, eager_copy, with_adapter
from support.trainers import make_trainer, relative_error

SHAPE = ([3, 9, 1, 5], [[4, 9, 1, 6], [2, 2, 12, 5], [8, 1, 1, 3], [7, 10, 2, 4]])
BUDGET = 12
UPDATES = 3
PARTS = ((0, 1), (1, 3), (3, 4))
"""Groups of each update: four groups do not divide by three."""


@dataclass
class Recorded:
    """What the optimizer was given in each update, and the weights at that moment."""

    weights: list[dict[str, Tensor]] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)


def record(trainer: Trainer) -> Recorded:
    recorded, step = Recorded(), trainer.optimizer.step

    def recording(rate: float) -> dict[str, float]:
        module = trainer.policy.module
        recorded.weights.append({n: p.detach().clone() for n, p in module.named_parameters()})
        recorded.gradients.append({n: g.clone() for n, g in trainer.optimizer.gradients().items()})
        return step(rate)

    trainer.optimizer.step = recording  # type: ignore[method-assign]
    return recorded


def scored_groups() -> list[Group]:
    """With a sample out of budget, an unscored one and one that the policy's group did not move."""
    groups = random_groups(*SHAPE)
    groups[1].samples[2].finish_reason = FinishReason.LENGTH
    groups[0].samples[1].reward = None
    groups[0].samples[1].advantage = 0.0
    groups[3].samples[0].advantage = 0.0
    return groups


def members(groups: Sequence[Group], mask_truncated: bool) -> list[Member]:
    return [
        (group.prompt.token_ids, sample)
        for group in groups
        for sample in group.samples
        if sample.reward is not None and not (mask_truncated and sample.truncated)
    ]


def plain_gradients(
    start: nn.Module, reference: nn.Module, trainer: Trainer, recorded: Recorded, groups: Any
) -> list[tuple[dict[str, Tensor], float]]:
    """What each recorded update should have had, computed at the weights that it had."""
    config = trainer.config
    model, frozen = eager_copy(start).double(), eager_copy(reference).double()  # type: ignore[arg-type]
    masked = config.loss.mask_truncated
    whole = members(groups, masked)
    tokens = sum(len(sample.token_ids) for _, sample in whole)
    parts = [members(groups[low:high], masked) for low, high in PARTS]
    temperature = config.rollout.temperature
    with torch.no_grad():
        old = [padded_logprobs(model, part, temperature) for part in parts]
        kl = [padded_logprobs(frozen, part, temperature) for part in parts]
    results = []
    for number, weights in enumerate(recorded.weights):
        model.load_state_dict({n: w.double() for n, w in weights.items()}, strict=False)
        part = number % len(parts)
        results.append(
            plain_gradient_of_update(
                model,
                parts[part],
                config,
                old=old[part],
                reference=kl[part] if config.loss.beta else None,
                batch_tokens=tokens,
            )
        )
    return results


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "dapo"},
        {"type": "grpo", "beta": 0.05},
        {"type": "dr_grpo", "delta": 1.3, "epsilon_high": 0.28},
        {"type": "bnpo", "importance": "sequence"},
        {"type": "dapo", "importance": "sequence", "beta": 0.05, "mask_truncated": True},
        {"type": "grpo", "mask_truncated": True, "epsilon": 0.05},
    ],
)
@pytest.mark.parametrize("micro_batch", [10_000, 20])
def test_several_updates_of_a_batch(settings: dict[str, Any], micro_batch: int) -> None:
    assert_updates_are_plain(settings, {}, micro_batch)


@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("micro_batch", [10_000, 20])
def test_corrected_updates_of_a_batch(mode: str, level: str, micro_batch: int) -> None:
    """By what the weights before the first update say, in all of them; KL included."""
    correction = {"mode": mode, "level": level, "min": 0.85, "max": 1.2}
    settings = {"type": "grpo", "importance": "sequence", "beta": 0.05}
    metrics = assert_updates_are_plain(settings, correction, micro_batch)
    names = ("correction/truncated_ratio", "correction/dropped_ratio")
    changed, other = (metrics[name] for name in (names if mode == "truncate" else names[::-1]))
    assert 0.1 < changed < 0.9
    assert other == 0.0


def assert_updates_are_plain(
    settings: dict[str, Any], correction: dict[str, Any], micro_batch: int
) -> dict[str, float]:
    """Two passes over three uneven parts; the policy moves enough for ratios to be clipped."""
    model, groups = build("qwen2"), scored_groups()
    if correction:
        engine_numbers(model, groups)
    start, other = eager_copy(model), build("qwen2", seed=3)
    trainer = make_trainer(
        model,
        micro_batch,
        loss=settings,
        correction=correction,
        rollout={"max_completion_tokens": BUDGET, "temperature": 0.8},
        train={"learning_rate": 1e-4, "num_iterations": 2, "updates_per_batch": UPDATES},
        data={"prompts_per_step": 4},
    )
    if settings.get("beta"):
        trainer.reference = Policy(other)
    recorded = record(trainer)
    metrics = trainer.update(groups)
    expected = plain_gradients(start, other, trainer, recorded, groups)
    assert trainer.policy.version == len(expected) == 2 * UPDATES
    for (plain, _), ours in zip(expected, recorded.gradients, strict=True):
        assert relative_error(plain, {n: g.double() for n, g in ours.items()}) < 2e-5
    assert metrics["loss"] == pytest.approx(
        sum(loss for _, loss in expected) / 6, rel=1e-4, abs=1e-6
    )
    assert metrics["clip_ratio/region_mean"] > 0
    return metrics


def engine_numbers(model: nn.Module, groups: Sequence[Group], noise: float = 0.5) -> None:
    """Give the samples what an engine might have said of their tokens, off by so many nats."""
    generator = torch.Generator().manual_seed(5)
    everything = members(groups, mask_truncated=False)
    with torch.no_grad():
        rows = padded_logprobs(eager_copy(model), everything, 0.8)  # type: ignore[arg-type]
    for row, (_, sample) in zip(rows, everything, strict=True):
        spoilt = row + noise * torch.randn(len(row), generator=generator)
        sample.logprobs = spoilt[: len(sample.token_ids)].tolist()


def test_an_adapters_reference_is_the_policy_without_it() -> None:
    groups = scored_groups()
    base = build("llama")
    trainer = make_trainer(
        with_adapter(build("llama")),
        loss={"beta": 0.1},
        train={"method": "lora", "learning_rate": 1e-3},
        rollout={"max_completion_tokens": BUDGET},
    )
    expected = 0.0
    adapted = with_adapter(build("llama"))
    adapted.get_base_model().set_attn_implementation("eager")
    whole = members(groups, mask_truncated=False)
    with torch.no_grad():
        gap = padded_logprobs(eager_copy(base), whole, 1.0) - padded_logprobs(adapted, whole, 1.0)
    terms = torch.exp(gap) - gap - 1  # 0 at padding, where both are 0
    expected = float(terms.sum()) / sum(len(sample.token_ids) for _, sample in whole)
    assert expected > 0.01
    assert trainer.update(groups)["kl"] == pytest.approx(expected, rel=1e-3)


def counting(trainer: Trainer) -> list[int]:
    """Tokens of each forward of the policy, as they come."""
    forwards: list[int] = []
    hidden_states = trainer.policy.hidden_states

    def counted(ids: Tensor, *arguments: Any) -> Tensor:
        forwards.append(len(ids))
        return hidden_states(ids, *arguments)

    trainer.policy.hidden_states = counted  # type: ignore[method-assign]
    return forwards


def test_one_update_is_one_forward_over_unique_tokens() -> None:
    """Ratios, entropy and the comparison with the engine come out of it: no second pass."""
    groups = random_groups([6, 4], [[5, 3], [2, 7]])
    trainer = make_trainer(build("llama"))
    forwards = counting(trainer)
    metrics = trainer.update(groups)
    # The last token of a completion predicts nothing, so it is not fed.
    unique = 6 + 4 + 4 + 2 + 1 + 6
    assert sum(forwards) == metrics["tokens/computed"] == unique
    assert metrics["tokens/trained"] == 5 + 3 + 2 + 7


def test_groups_without_a_difference_are_counted_and_not_computed() -> None:
    groups = random_groups([6, 4], [[5, 3], [2, 7]])
    for sample in groups[1].samples:
        sample.advantage = 0.0
    metrics = make_trainer(build("llama")).update(groups)
    assert metrics["tokens/computed"] == 6 + 4 + 2
    assert metrics["tokens/trained"] == 5 + 3 + 2 + 7


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("importance", ["token", "sequence"])
def test_metrics_are_the_same_for_every_micro_batch(beta: float, importance: str) -> None:
    """They are sums over sums, never means of the micro-batches' means."""

    def metrics(budget: int) -> dict[str, float]:
        trainer = make_trainer(
            build("llama"),
            budget,
            loss={"beta": beta, "importance": importance, "epsilon": 0.02},
            correction={"mode": "mask", "level": importance, "max": 1.02},
            train={"learning_rate": 1e-2, "num_iterations": 2},
        )
        trainer.reference = Policy(build("llama", seed=5)) if beta else None
        return trainer.update(random_groups(*SHAPE))

    whole = metrics(10_000)
    assert whole["clip_ratio/low_mean"] + whole["clip_ratio/high_mean"] > 0
    for budget in (1, 17, 30):
        split = metrics(budget)
        # What is computed depends on the split (a divided prompt), what is measured does not.
        for name in whole.keys() - {"tokens/computed", "tokens/computed_at_once", "learning_rate"}:
            assert split[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("moving", [True, False])
def test_the_engines_numbers_are_measured(level: str, moving: bool) -> None:
    """Against the definitions; where nothing moves a weight, of the few that are scored."""
    model, groups = build("qwen2"), random_groups(*SHAPE)
    engine_numbers(model, groups)
    if not moving:
        for sample in (sample for group in groups for sample in group.samples):
            sample.advantage = 0.0
    correction = {"mode": "mask", "level": level, "min": 0.7, "max": 1.3}
    trainer = make_trainer(model, rollout={"temperature": 0.8}, correction=correction)
    whole = members(groups, mask_truncated=False)[: None if moving else PROOF_SAMPLES]
    with torch.no_grad():
        scores = padded_logprobs(eager_copy(model).double(), whole, 0.8)  # type: ignore[arg-type]
    differences = [
        row[: len(sample.token_ids)] - torch.tensor(sample.logprobs, dtype=torch.float64)
        for row, (_, sample) in zip(scores, whole, strict=True)
    ]
    metrics = trainer.update(groups)
    for row, (_, sample) in zip(scores, whole, strict=True):
        ours = row[: len(sample.token_ids)].tolist()
        assert sample.trainer_logprobs == pytest.approx(ours, rel=1e-4)
    every = torch.cat(differences)
    if level == "sequence":
        ratios = torch.cat([row.mean().exp().expand_as(row) for row in differences])
    else:
        ratios = every.exp()
    expected = {
        "sampling/logp_difference_mean": every.abs().mean(),
        "sampling/logp_difference_max": every.abs().max(),
        "sampling/importance_ratio_mean": ratios.mean(),
        "sampling/importance_ratio_min": ratios.min(),
        "sampling/importance_ratio_max": ratios.max(),
        "correction/dropped_ratio": ((ratios < 0.7) | (ratios > 1.3)).double().mean(),
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(float(value), rel=1e-4), name


def test_an_engine_that_agrees_is_corrected_by_nothing() -> None:
    """Weights of all updates are the same bits with a correction and without."""
    results = []
    for mode in ("off", "truncate", "mask"):
        trainer = make_trainer(
            build("llama"), correction=mode, train={"learning_rate": 1e-3, "num_iterations": 2}
        )
        groups = random_groups([3, 5], [[4, 2], [6, 3]])
        batch = TrainBatch.of(groups, trainer.config)
        scores = trainer.logprobs(trainer.policy, batch)
        for sample, row in zip(batch.samples, scores, strict=True):
            sample.sample.logprobs = row.tolist()
        trainer.update(groups)
        results.append([p.detach().clone() for p in trainer.policy.module.parameters()])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_the_oldest_version_is_known() -> None:
    """Of the model's own tokens; a tool's has none to speak of."""
    groups = random_groups([3, 5], [[4, 2], [6, 3]])
    first, *_ = (sample for group in groups for sample in group.samples)
    first.policy_versions, first.sources[0] = [1, 5, 6, 7], TokenSource.TOOL
    for sample in (sample for group in groups for sample in group.samples[1:]):
        sample.policy_versions = [7] * len(sample.token_ids)
    groups[1].samples[0].policy_versions = [7] * 6
    trainer = make_trainer(build("llama"))
    trainer.policy.version = 7
    trainer.update(groups)
    assert trainer.mismatch.lag == 2


@pytest.mark.parametrize("spoil", ["unscored", "empty", "truncated", "tools"])
def test_a_batch_without_a_token_to_learn_from_moves_nothing(spoil: str) -> None:
    groups = random_groups([3, 4], [[2, 3], [4, 1]])
    for sample in (sample for group in groups for sample in group.samples):
        if spoil == "unscored":
            sample.reward, sample.advantage = None, 0.0
        elif spoil == "empty":
            sample.token_ids, sample.logprobs, sample.kept_mass_logs = [], [], []
            sample.sources, sample.policy_versions = [], []
        elif spoil == "truncated":
            sample.finish_reason = FinishReason.LENGTH
        else:
            sample.sources = [TokenSource.TOOL] * len(sample.sources)
    trainer = make_trainer(build("llama"), loss={"mask_truncated": True})
    before = {n: p.detach().clone() for n, p in trainer.policy.module.named_parameters()}
    metrics = trainer.update(groups)
    for name, parameter in trainer.policy.module.named_parameters():
        assert torch.equal(parameter.detach(), before[name]), name
    assert (metrics["tokens/trained"], metrics["tokens/computed"], metrics["loss"]) == (0, 0, 0)
    assert metrics["grad_norm"] == 0
    assert math.isnan(metrics["entropy"])


def test_the_rate_of_a_batch_is_that_of_all_its_updates() -> None:
    trainer = make_trainer(
        build("llama"),
        train={
            "learning_rate": 1e-3,
            "steps": 4,
            "warmup_steps": 1,
            "num_iterations": 2,
            "updates_per_batch": 2,
        },
    )
    rates: list[float] = []
    step = trainer.optimizer.step

    def recording(rate: float) -> dict[str, float]:
        rates.append(rate)
        return step(rate)

    trainer.optimizer.step = recording  # type: ignore[method-assign]
    for _ in range(4):
        trainer.update(random_groups([3, 4], [[2, 3], [4, 1]]))
    assert rates == pytest.approx([r for r in (5e-4, 1e-3, 2e-3 / 3, 1e-3 / 3) for _ in range(4)])
    assert trainer.policy.version == 16
