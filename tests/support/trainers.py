"""Trainers over small models, and what tests ask of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from roost.config.loading import build_config
from roost.model.policy import Policy
from roost.samples import Group
from roost.training.batch import TrainBatch
from roost.training.parallel import ALONE, Ranks
from roost.training.trainer import Trainer


def make_trainer(
    module: nn.Module, micro_batch_tokens: int = 10_000, *, ranks: Ranks = ALONE, **sections: Any
) -> Trainer:
    """A trainer with the default configuration but for these sections."""
    sections.setdefault("rollout", {"max_completion_tokens": 64})
    sections.setdefault("train", {"learning_rate": 1e-3})
    config = build_config(sections)
    return Trainer(Policy(module), config, micro_batch_tokens=micro_batch_tokens, ranks=ranks)


def gradient(trainer: Trainer, groups: Sequence[Group]) -> dict[str, Tensor]:
    """The gradient that one update of these groups would use, by parameter name."""
    batch = TrainBatch.of(groups, trainer.config)
    trainer.optimizer.zero_grad()
    for part in batch.parts:
        trainer.accumulate(batch, part, defaultdict(float))
    return {name: g.clone() for name, g in trainer.optimizer.gradients().items()}


def relative_error(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest relative difference of any parameter's gradient.

    Relative to the parameter's own gradient in ``one``, the reference, or to a thousandth of the
    whole gradient where its own is smaller than that: a gradient of nearly 0 has only rounding in
    it. Where it is exactly 0 (queries and keys of a token that sees itself alone) the difference
    is the rounding of terms that cancel, and a hundredth is the measure: 1e-5 of that is one
    float32 rounding of the whole.
    """
    assert one.keys() == other.keys()
    whole = sum(float(g.double().pow(2).sum()) for g in one.values()) ** 0.5

    def scale(own: float) -> float:
        return max(own, 1e-3 * whole) if own else 1e-2 * whole

    return max(
        float((one[name] - other[name]).norm()) / scale(float(one[name].norm())) for name in one
    )
