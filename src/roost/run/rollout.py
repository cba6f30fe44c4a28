"""Prompts to scored groups: samples go to the rewards as each finishes, while others decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roost.engines.protocol import Engine, SamplingParams
from roost.rewards import RewardPool, Scored
from roost.run.interrupts import StopSwitch
from roost.samples import Group, Prompt, Sample


def generate(
    engine: Engine,
    pool: RewardPool,
    prompts: Sequence[Prompt],
    generations: int,
    sampling: SamplingParams,
    *,
    seed: int,
    step: int,
    stop: StopSwitch,
    on_sample: Callable[[Sample], None],
) -> list[Group]:
    """All samples of the prompts, grouped in the prompts' order; scoring has begun.

    A group has fewer samples where an engine could not make all, and is left out where it made
    none.

    Args:
        engine: Makes the samples.
        pool: Receives each sample as it finishes.
        prompts: Distinct ids.
        generations: Samples of each prompt.
        sampling: How they are drawn.
        seed: The run's; part of every sample's random key.
        step: The training step; likewise.
        stop: Checked after each sample.
        on_sample: Told of each sample, for the progress bar.

    Raises:
        Interrupted: a stop was asked for; what was sampled is dropped.
    """
    groups = {prompt.id: Group(prompt, []) for prompt in prompts}
    try:
        for sample in engine.generate(prompts, generations, sampling, seed=seed, step=step):
            group = groups[sample.prompt_id]
            group.samples.append(sample)
            pool.submit(group.prompt, sample)
            on_sample(sample)
            stop.check()
    except BaseException:
        pool.cancel()
        raise
    for group in groups.values():
        group.samples.sort(key=lambda sample: sample.index)
    # A prompt whose requests a server refused, all of them, has nothing to train on.
    return [group for group in groups.values() if group.samples]


def finish_scoring(pool: RewardPool, groups: Sequence[Group]) -> list[Scored]:
    """Wait for the rewards still running and write all of them into the samples.

    Returns the scores in the order of the samples, whichever worker was first.
    """
    scores = {(score.prompt_id, score.index): score for score in pool.drain()}
    ordered = []
    for group in groups:
        for sample in group.samples:
            score = scores[sample.prompt_id, sample.index]
            sample.rewards, sample.reward = score.rewards, score.reward
            ordered.append(score)
    return ordered
