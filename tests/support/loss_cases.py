"""Batches with everything that a loss must handle, and the objective written the plain way.

The plain way is float64, padded ``[samples, tokens]`` and follows the papers: one row a sample,
a mask, and the aggregation spelled out for each loss type. It shares nothing with the package.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roost.config.loading import build_config
from roost.samples import FinishReason, Group, Prompt, Sample, TokenSource
from roost.training.batch import TrainBatch

BUDGET = 11
"""Completion budget of the cases."""
LENGTHS = ((3, 1, 7), (11, 2, 11), (5, 5, 4), (1, 9, 6))
"""Tokens of the completions of each group."""


@dataclass(frozen=True)
class Padded:
    """A part of a batch, one row a sample; padding and tool tokens are off in ``mask``."""

    logprobs: Tensor
    old: Tensor
    reference: Tensor
    mask: Tensor
    advantages: Tensor
    engine: Tensor
    """The engine's, which the correction compares with ``old``."""


def make_groups(seed: int = 0, *, unscored: bool = True, tools: bool = True) -> list[Group]:
    """Groups with truncated completions, and where asked unscored ones and tool tokens."""
    rng = random.Random(seed)
    groups = []
    for number, lengths in enumerate(LENGTHS):
        samples = [_sample(rng, number, i, n, tools) for i, n in enumerate(lengths)]
        groups.append(Group(Prompt(number, (4, 5), "prompt"), samples))
    if unscored:
        groups[2].samples[1].reward = None
        groups[2].samples[1].advantage = 0.0
    return groups


def _sample(rng: random.Random, group: int, index: int, count: int, tools: bool) -> Sample:
    sources = [TokenSource.MODEL] * count
    if tools and count >= 4:
        sources[1:3] = [TokenSource.TOOL, TokenSource.ENVIRONMENT]
    advantage = rng.uniform(-2, 2)
    return Sample(
        prompt_id=group,
        index=index,
        token_ids=[rng.randrange(90) for _ in range(count)],
        logprobs=[-1.0] * count,
        kept_mass_logs=[0.0] * count,
        finish_reason=FinishReason.LENGTH if count == BUDGET else FinishReason.STOP,
        policy_versions=[0] * count,
        sources=sources,
        reward=advantage,
        advantage=advantage,
    )


def make_batch(
    groups: Sequence[Group],
    updates: int = 1,
    seed: int = 0,
    correction: Mapping[str, Any] | None = None,
    **loss: Any,
) -> TrainBatch:
    """A batch of the groups with old and, for a KL, reference log-probabilities set.

    The engine's log-probabilities are -1, far enough from the old ones to be corrected.
    """
    config = build_config(
        {
            "loss": loss,
            "correction": correction or {},
            "train": {"updates_per_batch": updates},
            "rollout": {"max_completion_tokens": BUDGET},
        }
    )
    batch = TrainBatch.of(groups, config)
    generator = torch.Generator().manual_seed(seed)
    for sample in batch.samples:
        count = len(sample.sample.token_ids)
        old = -2.0 * torch.rand(count, generator=generator)
        sample.old_logprobs = old
        if config.loss.beta > 0:
            sample.reference_logprobs = old + 0.7 * torch.randn(count, generator=generator)
    return batch


def policy_logprobs(batch: TrainBatch, part: int, seed: int = 1) -> list[Tensor]:
    """New log-probabilities of a part's samples, far enough from the old ones to be clipped."""
    generator = torch.Generator().manual_seed(seed)
    results = []
    for sample in batch.parts[part]:
        assert sample.old_logprobs is not None
        noise = torch.randn(len(sample.old_logprobs), generator=generator)
        results.append(sample.old_logprobs + 0.5 * noise)
    return results


def padded(batch: TrainBatch, part: int, logprobs: Sequence[Tensor]) -> Padded:
    """The same numbers in float64 rows, padding on the right."""
    samples = batch.parts[part]
    width = max(len(row) for row in logprobs)

    def rows(values: Sequence[Tensor | None]) -> Tensor:
        result = torch.zeros(len(samples), width, dtype=torch.float64)
        for row, value in zip(result, values, strict=True):
            if value is not None:
                row[: len(value)] = value.double()
        return result

    is_model = [
        torch.tensor([source is TokenSource.MODEL for source in s.sample.sources]) for s in samples
    ]
    return Padded(
        logprobs=rows(logprobs),
        old=rows([s.old_logprobs for s in samples]),
        reference=rows([s.reference_logprobs for s in samples]),
        mask=rows(is_model),
        advantages=torch.tensor([s.sample.advantage for s in samples], dtype=torch.float64),
        engine=rows([torch.tensor(s.sample.full_logprobs) for s in samples]),
    )


def plain_correction(rows: Padded, correction: Any) -> Tensor:
    """``[samples, tokens]``: what the engine's numbers make of each term."""
    result = torch.ones_like(rows.mask)
    for number, inside in enumerate(rows.mask > 0):
        ratios = (rows.old[number, inside] - rows.engine[number, inside]).exp()
        if correction.level == "sequence":
            ratios = torch.full_like(ratios, float(ratios.prod() ** (1 / len(ratios))))
        leaves = (ratios < correction.min) | (ratios > correction.max)
        if correction.mode == "mask":
            ratios[leaves] = 0.0
        elif correction.mode == "truncate":
            ratios = torch.minimum(ratios, torch.tensor(correction.max))
            ratios = torch.maximum(ratios, torch.tensor(correction.min))
        else:
            ratios = torch.ones_like(ratios)
        result[number, inside] = ratios
    return result


def plain_terms(rows: Padded, loss: Any, correction: Any) -> Tensor:
    """``[samples, tokens]``: every token's term before averaging."""
    low, high = 1 - loss.epsilon, 1 + (loss.epsilon_high or loss.epsilon)
    difference = rows.logprobs - rows.old
    if loss.importance == "sequence":
        mean = (difference * rows.mask).sum(1) / rows.mask.sum(1)
        difference = mean[:, None].expand_as(difference)
    ratio = torch.exp(difference)
    advantage = rows.advantages[:, None]
    bounded = torch.where(ratio > (loss.delta or torch.inf), loss.delta or 0.0, ratio)
    clipped = torch.where(ratio < low, low, torch.where(ratio > high, high, ratio))
    terms = -torch.minimum(bounded * advantage, clipped * advantage)
    if loss.beta > 0:
        gap = rows.reference - rows.logprobs
        terms = terms + loss.beta * ratio * (torch.exp(gap) - gap - 1)
    return terms * plain_correction(rows, correction)


def plain_loss(rows: Padded, batch: TrainBatch) -> Tensor:
    """The loss of one update, averaged as the loss type says."""
    terms = plain_terms(rows, batch.config.loss, batch.config.decided_correction) * rows.mask
    updates = batch.config.train.updates_per_batch
    batch_tokens = sum(
        source is TokenSource.MODEL for s in batch.samples for source in s.sample.sources
    )
    match batch.config.loss.type:
        case "grpo":
            return (terms.sum(1) / rows.mask.sum(1)).mean()
        case "dr_grpo":
            return terms.sum() / (len(terms) * BUDGET)
        case "bnpo":
            return terms.sum() / rows.mask.sum()
        case "dapo":
            return terms.sum() / (batch_tokens / updates)
        case other:
            raise AssertionError(other)
