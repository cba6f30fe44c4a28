"""Held-out evaluation: mean reward, pass@1, pass@k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from roost.engines.protocol import Engine, SamplingParams
from roost.rewards import RewardPool, Scored
from roost.run.interrupts import StopSwitch
from roost.run.rollout import Rollout, finish_scoring, gather_scored
from roost.samples import Group, Prompt, Sample
from roost.training.parallel import ALONE, Ranks

SEED_OFFSET = 0x5EED
"""Keeps evaluation's random streams apart from training's."""

PASS_REWARD = 1.0
"""A sample passes when its reward reaches this."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """What an evaluation found."""

    prompts: int
    generations: int
    reward: float
    """Mean reward of the scored samples; NaN when none scored."""
    pass_at_1: float
    """Share of samples that pass."""
    pass_at_k: float
    """Chance that one of k = ``generations`` samples of a prompt passes."""
    mean_length: float
    """Tokens a completion."""
    truncated: float
    """Share of completions that ran out of budget."""
    unscored: int
    """Samples that no reward could score."""

    def as_dict(self) -> dict[str, Any]:
        """Field names to values, for JSON, which has no NaN: then the reward is None."""
        return asdict(self) | {"reward": None if math.isnan(self.reward) else self.reward}


def evaluate(
    engine: Engine,
    pool: RewardPool,
    prompts: Sequence[Prompt],
    generations: int,
    sampling: SamplingParams,
    *,
    seed: int,
    pass_reward: float = PASS_REWARD,
    stop: StopSwitch | None = None,
    on_sample: Callable[[Sample], None] = lambda sample: None,
    on_scores: Callable[[Sequence[Scored]], None] = lambda scores: None,
    ranks: Ranks = ALONE,
) -> EvalResult:
    """Sample and score held-out prompts.

    The random streams are the same at every call, so two policies are compared on equal draws.
    """
    rollout = Rollout(
        engine,
        pool,
        prompts,
        generations,
        sampling,
        seed=seed + SEED_OFFSET,
        step=0,
        ranks=ranks,
    )
    groups = rollout.collect(stop or StopSwitch(), on_sample)
    groups, scores = gather_scored(ranks, prompts, groups, finish_scoring(pool, groups))
    on_scores(scores)
    return summarise(groups, generations, pass_reward)


def summarise(groups: Sequence[Group], generations: int, pass_reward: float) -> EvalResult:
    """The figures of scored groups."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    passes = [[_passes(sample, pass_reward) for sample in group.samples] for group in groups]
    return EvalResult(
        prompts=len(groups),
        generations=generations,
        reward=fmean(rewards) if rewards else math.nan,
        pass_at_1=fmean(fmean(group) for group in passes),
        pass_at_k=fmean(pass_at_k(len(group), sum(group), len(group)) for group in passes),
        mean_length=fmean(len(sample.token_ids) for sample in samples),
        truncated=fmean(sample.truncated for sample in samples),
        unscored=len(samples) - len(rewards),
    )


def _passes(sample: Sample, pass_reward: float) -> bool:
    return sample.reward is not None and sample.reward >= pass_reward


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased chance that one of k samples passes, given n samples of which ``correct`` do.

    Chen et al. 2021 (arXiv:2107.03374), equation 1.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n; k = {k}, n = {n}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)
