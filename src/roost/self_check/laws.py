"""Checks of what holds with every engine."""

from __future__ import annotations

import torch

from roost.gpu_check.results import CheckFailed, Found, require
from roost.run.agreement import LIMITS
from roost.samples import Group
from roost.self_check.subject import RATE
from roost.self_check.trial import Drawn, Trial, drawn
from roost.training.batch import TrainBatch

_NAMED = 3
"""Tensors that a failure names; the others are counted."""


def agreement(trial: Trial) -> Found:
    """The trainer scores fresh samples as the engine said that it drew them."""
    return Found(compare(trial, trial.synced_draw()))


def zero_advantage(trial: Trial) -> Found:
    """A step whose rewards are all equal has no gradient, and moves no weight at a rate that is
    not 0. Comes before any step with a gradient, whose momentum would go on."""
    before = trial.weights()
    metrics = trial.step(lambda sample: 1.0, rate=RATE)
    _require_unmoved(before, trial.weights())
    require(metrics["grad_norm"] == 0.0, f"the gradient's norm is {metrics['grad_norm']:.3g}")
    return Found(f"equal rewards, learning rate {RATE:g}: {_all_still(before)}")


def learning_rate_0(trial: Trial) -> Found:
    """A step with a gradient and no learning rate moves no weight; what is sampled after the sync
    that follows is what was sampled before."""
    first, again = _twice(trial)
    before = trial.weights()
    metrics = trial.step(lambda sample: float(sample.index % 2), rate=0.0)
    norm = metrics["grad_norm"]
    require(norm > 0.0, f"the gradient's norm is {norm:.3g}, so the step shows nothing")
    _require_unmoved(before, trial.weights())
    after, later = _twice(trial)
    still = f"gradient {norm:.3g}: {_all_still(before)}"
    if first != again or after != later:
        # It rounds by which samples share a batch. Its weights are compared by the sync's proof.
        return Found(f"{still}; samples not compared: the engine does not repeat its own to a bit")
    changed = sum(first[key] != after.get(key) for key in first)
    require(changed == 0, f"{changed} of {len(first)} samples changed")
    return Found(f"{still}; {len(first)} samples the same")


def compare(trial: Trial, groups: list[Group]) -> str:
    """How far engine and trainer are apart on some samples.

    Raises:
        CheckFailed: farther than a run allows.
    """
    trainer, policy = trial.session.trainer, trial.policy
    batch = TrainBatch.of(groups, trainer.config)
    if not batch.samples:
        raise CheckFailed("the engine made no sample")
    scored = torch.cat(trainer.logprobs(policy, batch)).double().cpu()
    engine = [value for sample in batch.samples for value in sample.sample.full_logprobs]
    gap = (scored - torch.tensor(engine, dtype=torch.float64)).abs()
    mean, limit = float(gap.mean()), LIMITS[policy.dtype]
    figures = (
        f"{mean:.2g} nats a token apart on average, {float(gap.max()):.2g} at most, over "
        f"{len(gap)} tokens of {len(batch.samples)} samples; {_name(policy.dtype)} allows "
        f"{limit:g} on average"
    )
    require(mean <= limit, figures)
    return figures


def _twice(trial: Trial) -> tuple[Drawn, Drawn]:
    """The same samples twice, with nothing between."""
    return drawn(trial.synced_draw()), drawn(trial.synced_draw())


def _require_unmoved(before: dict[str, str], after: dict[str, str]) -> None:
    moved = [name for name in before if after[name] != before[name]]
    named = ", ".join(moved[:_NAMED])
    require(not moved, f"{len(moved)} of {len(before)} tensors moved, {named} among them")


def _all_still(weights: dict[str, str]) -> str:
    return f"not a bit of {len(weights)} tensors moved"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
