"""A rollout batch as the trainer sees it: which samples count, and with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import torch
from torch import Tensor

from roost.algorithm.losses import TOKEN_WEIGHTS, LossCounts
from roost.algorithm.objective import TokenBatch
from roost.config import RunConfig
from roost.samples import Group, Sample, TokenSource
from roost.training.packing import Completion, Pack, build_packs


@dataclass(slots=True)
class TrainSample:
    """A sample with what training knows of it beyond the rollout."""

    sample: Sample
    group: int
    """Index of its group in the batch."""
    loss_tokens: list[bool]
    """Per token, whether it counts in the loss: the model's own tokens do."""
    old_logprobs: Tensor | None = None
    """``[tokens]``: under the policy before the first update of this batch."""
    reference_logprobs: Tensor | None = None
    """``[tokens]``: under the reference."""

    @property
    def count(self) -> int:
        """Tokens in the loss."""
        return sum(self.loss_tokens)


@dataclass(slots=True)
class TrainBatch:
    """A rollout batch, divided into the parts that each get an optimizer update."""

    groups: Sequence[Group]
    samples: list[TrainSample]
    """Samples that count in the loss."""
    config: RunConfig
    parts: list[list[TrainSample]] = field(default_factory=list)

    @classmethod
    def of(cls, groups: Sequence[Group], config: RunConfig) -> TrainBatch:
        """The samples of groups that count in the loss.

        Left out are unscored samples, empty completions, and with ``loss.mask_truncated`` those
        that ran out of budget.
        """
        samples = [
            TrainSample(sample, index, [s is TokenSource.MODEL for s in sample.sources])
            for index, group in enumerate(groups)
            for sample in group.samples
            if _counts(sample, config.loss.mask_truncated)
        ]
        batch = cls(groups, samples, config)
        updates = config.train.updates_per_batch
        bounds = [round(i * len(groups) / updates) for i in range(updates + 1)]
        batch.parts = [
            [s for s in samples if low <= s.group < high] for low, high in pairwise(bounds)
        ]
        return batch

    @property
    def tokens(self) -> int:
        """Loss tokens of the batch."""
        return sum(sample.count for sample in self.samples)

    def lag(self, version: int) -> int:
        """How many versions the oldest of the model's own tokens is behind a policy's version."""
        lags = [
            version - sampled
            for member in self.samples
            for sampled, counted in zip(
                member.sample.policy_versions, member.loss_tokens, strict=True
            )
            if counted
        ]
        return max(lags, default=0)

    def counts(self, part: Sequence[TrainSample]) -> LossCounts:
        """What the token weights of a part depend on."""
        return LossCounts(
            update_samples=len(part),
            update_tokens=sum(sample.count for sample in part),
            batch_tokens=self.tokens,
            updates=len(self.parts),
            max_completion_tokens=self.config.rollout.max_completion_tokens,
        )

    def packs(self, samples: Sequence[TrainSample], budget: int) -> list[Pack]:
        """Packs of some samples; ``pack.samples`` are indices into ``samples``."""
        completions = [
            Completion(s.group, index, s.sample.token_ids) for index, s in enumerate(samples)
        ]
        return build_packs([g.prompt.token_ids for g in self.groups], completions, budget)

    def token_batch(
        self, members: Sequence[TrainSample], counts: LossCounts, device: torch.device
    ) -> TokenBatch:
        """What the objective needs of the samples of a pack, in the pack's order."""
        weight_of = TOKEN_WEIGHTS[self.config.loss.type]
        advantages: list[float] = []
        weights: list[float] = []
        owners: list[int] = []
        engine: list[float] = []
        for owner, member in enumerate(members):
            weight = weight_of(member.count, counts)
            weights.extend(weight if counted else 0.0 for counted in member.loss_tokens)
            advantages.extend([member.sample.advantage] * len(member.loss_tokens))
            owners.extend([owner] * len(member.loss_tokens))
            engine.extend(member.sample.full_logprobs)
        return TokenBatch(
            advantages=torch.tensor(advantages, dtype=torch.float32, device=device),
            weights=torch.tensor(weights, dtype=torch.float32, device=device),
            samples=torch.tensor(owners, dtype=torch.int64, device=device),
            old_logprobs=_joined([m.old_logprobs for m in members]),
            reference_logprobs=_joined([m.reference_logprobs for m in members]),
            engine_logprobs=torch.tensor(engine, dtype=torch.float32, device=device),
        )


def keep_scores(members: Sequence[TrainSample], logprobs: Tensor) -> None:
    """Leave each sample what the trainer found of its tokens.

    Args:
        members: In the order of the tokens.
        logprobs: ``[tokens]`` under the weights that sampled.
    """
    values = iter(logprobs.tolist())
    for member in members:
        member.sample.trainer_logprobs = list(islice(values, len(member.sample.token_ids)))


def _counts(sample: Sample, mask_truncated: bool) -> bool:
    if sample.reward is None or TokenSource.MODEL not in sample.sources:
        return False
    return not (mask_truncated and sample.truncated)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None
