"""Prompts to scored groups: samples go to the rewards as each finishes, while others decode."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from roost.engines.protocol import Engine, SamplingParams
from roost.errors import RoostError
from roost.rewards import RewardPool, Scored
from roost.run.interrupts import Interrupted, StopSwitch
from roost.samples import Group, Prompt, Sample
from roost.training.parallel import ALONE, Ranks


class Rollout:
    """A batch on its way: its samples go to the rewards as each finishes.

    The engine has been asked once this is made, and samples from the weights of that moment,
    whoever collects and whatever is trained meanwhile.

    Ranks that hold one engine together all see its samples, and each keeps those of its share of
    the prompts.

    Args:
        engine: Makes the samples.
        pool: Receives each sample as it finishes.
        prompts: Distinct ids.
        generations: Samples of each prompt.
        sampling: How they are drawn.
        seed: The run's; part of every sample's random key.
        step: The training step; likewise.
        ranks: Share the prompts by expected length: tokens of the prompt and the whole budget.

    Raises:
        EngineError: the engine may not sample.
    """

    def __init__(
        self,
        engine: Engine,
        pool: RewardPool,
        prompts: Sequence[Prompt],
        generations: int,
        sampling: SamplingParams,
        *,
        seed: int,
        step: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.step = step
        self.prompts = prompts
        self.asked = len(prompts) * generations
        """Samples of all ranks."""
        self._pool = pool
        self._ranks = ranks
        budget = generations * sampling.max_completion_tokens
        costs = [len(prompt.token_ids) + budget for prompt in prompts]
        asked = ranks.divide_among_engines(prompts, costs)
        mine = asked[ranks.shard :: ranks.tensor_parallel]
        self._groups = {prompt.id: Group(prompt, []) for prompt in mine}
        self._samples = engine.generate(asked, generations, sampling, seed=seed, step=step)

    def collect(self, stop: StopSwitch, on_sample: Callable[[Sample], None]) -> list[Group]:
        """All samples of this rank's prompts, grouped in the prompts' order; scoring has begun.

        A group has fewer samples where an engine could not make all, and is left out where it made
        none.

        Args:
            stop: Checked after each sample; where ranks hold an engine together, which must do the
                same at the same time, after the last.
            on_sample: Told of each sample, for the progress bar.

        Raises:
            Interrupted: a stop was asked for, on any rank; what was sampled is dropped on all.
            RoostError: ranks that hold an engine together saw it draw different samples.
        """
        seen = SeenSamples()
        stopped = self._receive(seen, stop, on_sample)
        answers = self._ranks.gather((stopped, seen.digest()), "samples")
        if any(stopped for stopped, _ in answers):
            self._pool.cancel()
            raise Interrupted
        _check_same([digest for _, digest in answers], self._ranks.tensor_parallel)
        for group in self._groups.values():
            group.samples.sort(key=lambda sample: sample.index)
        # A prompt whose requests a server refused, all of them, has nothing to train on.
        return [group for group in self._groups.values() if group.samples]

    def _receive(
        self, seen: SeenSamples, stop: StopSwitch, on_sample: Callable[[Sample], None]
    ) -> bool:
        """Take each sample; returns whether a stop was asked for before the last."""
        try:
            for sample in self._samples:
                seen.add(sample)
                group = self._groups.get(sample.prompt_id)
                if group is not None:
                    group.samples.append(sample)
                    self._pool.submit(group.prompt, sample)
                on_sample(sample)
                if self._ranks.tensor_parallel == 1:
                    stop.check()
            stop.check()
        except Interrupted:
            return True
        except BaseException:
            self._pool.cancel()
            raise
        return False


class SeenSamples:
    """A digest of samples, in whichever order they come."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, sample: Sample) -> None:
        """Count one more."""
        content = repr((sample.prompt_id, sample.index, sample.token_ids)).encode()
        self._sum += int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")

    def digest(self) -> str:
        """Of all so far."""
        return f"{self._sum % 2**64:016x}"


def _check_same(digests: Sequence[str], tensor_parallel: int) -> None:
    for rank, digest in enumerate(digests):
        first = rank - rank % tensor_parallel
        if digest != digests[first]:
            raise RoostError(
                f"ranks {first} and {rank} hold one engine and saw it draw different samples, so "
                "it is out of step with itself. Set rollout.tensor_parallel = 1, or take cards of "
                "one kind."
            )


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


def gather_scored(
    ranks: Ranks, prompts: Sequence[Prompt], groups: list[Group], scores: list[Scored]
) -> tuple[list[Group], list[Scored]]:
    """Groups and scores of all ranks, on every rank, in the prompts' order.

    Advantages, normalisers and metrics are then computed of the whole step, wherever a group was
    sampled, and no mean of means is taken. Prompts stay where they are: only samples travel.

    Raises:
        RoostError: a rank failed, or did not answer in time; it is named.
    """
    if ranks.world == 1:
        return groups, scores
    by_prompt: dict[int, tuple[list[Sample], list[Scored]]] = {
        group.prompt.id: (group.samples, []) for group in groups
    }
    for score in scores:
        by_prompt[score.prompt_id][1].append(score)
    everything: dict[int, tuple[list[Sample], list[Scored]]] = {}
    for part in ranks.gather(by_prompt, "scored samples"):
        everything |= part
    gathered = [Group(prompt, everything[prompt.id][0]) for prompt in prompts]
    return gathered, [score for prompt in prompts for score in everything[prompt.id][1]]


def gather_trainer_logprobs(ranks: Ranks, groups: Sequence[Group]) -> None:
    """Bring what each rank's trainer found of its share of the tokens to every rank.

    Args:
        ranks: All of them call this at the same time.
        groups: Of the whole step; their samples are filled in.

    Raises:
        RoostError: a rank failed, or did not answer in time; it is named.
    """
    samples = {(s.prompt_id, s.index): s for group in groups for s in group.samples}
    mine = {key: found for key, s in samples.items() if (found := s.trainer_logprobs) is not None}
    for part in ranks.gather(mine, "log-probabilities"):
        for key, found in part.items():
            samples[key].trainer_logprobs = found
