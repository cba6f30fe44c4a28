"""Samples go to the rewards as each finishes, and come back in order whoever was first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from roost.config import RewardsConfig
from roost.engines.protocol import Engine, SamplingParams
from roost.errors import RoostError
from roost.rewards import RewardPool, Scored, load_rewards
from roost.run.interrupts import Interrupted, StopSwitch
from roost.run.rollout import Rollout, finish_scoring
from roost.samples import FinishReason, Group, Prompt, Sample, TokenSource
from roost.training.parallel import ALONE, Ranks

PROMPTS = [Prompt(7, (1,), "seven"), Prompt(3, (1, 2), "three")]
FINISHED = [(3, 1), (7, 0), (3, 0), (7, 1)]
"""Prompt id and index of each sample, in the order in which they end."""


def sample(prompt_id: int, index: int) -> Sample:
    return Sample(prompt_id, index, [9], [-1.0], [0.0], FinishReason.STOP, [0], [TokenSource.MODEL])


class ScriptedEngine:
    """Gives samples in ``FINISHED``'s order; notes when each was asked for."""

    def __init__(self, events: list[Any], fails_after: int | None = None) -> None:
        self.events = events
        self.fails_after = fails_after
        self.asked: tuple[Any, ...] = ()

    def generate(
        self,
        prompts: Sequence[Prompt],
        generations: int,
        sampling: SamplingParams,
        *,
        seed: int,
        step: int,
    ) -> Iterator[Sample]:
        self.asked = (list(prompts), generations, sampling, seed, step)
        for number, key in enumerate(FINISHED):
            if number == self.fails_after:
                raise MemoryError
            self.events.append(("decoded", key))
            yield sample(*key)


class ScriptedPool:
    """Scores 10 times the prompt's id plus the index; the last submitted is the first back."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events
        self.submitted: list[tuple[Prompt, Sample]] = []

    def submit(self, prompt: Prompt, sample: Sample) -> None:
        assert prompt.id == sample.prompt_id
        self.events.append(("submitted", (sample.prompt_id, sample.index)))
        self.submitted.append((prompt, sample))

    def cancel(self) -> None:
        self.events.append("cancelled")

    def drain(self) -> list[Scored]:
        keys = [(s.prompt_id, s.index) for _, s in reversed(self.submitted)]
        return [Scored(p, i, {"r": 10.0 * p, "i": float(i)}, 10.0 * p + i, []) for p, i in keys]


class Script:
    """One rollout with everything scripted."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.events: list[Any] = []
        self.engine = ScriptedEngine(self.events, fails_after)
        self.pool = ScriptedPool(self.events)
        self.stop = StopSwitch()
        self.seen: list[Sample] = []

    def run(self, stop_after: int | None = None, ranks: Ranks = ALONE) -> list[Group]:
        def on_sample(sample: Sample) -> None:
            self.seen.append(sample)
            if len(self.seen) == stop_after:
                self.stop.ask()

        rollout = Rollout(
            cast(Engine, self.engine),
            cast(RewardPool, self.pool),
            PROMPTS,
            2,
            SamplingParams(5),
            seed=11,
            step=4,
            ranks=ranks,
        )
        return rollout.collect(self.stop, on_sample)


def keys(groups: Sequence[Group]) -> list[list[tuple[int, int]]]:
    return [[(s.prompt_id, s.index) for s in group.samples] for group in groups]


def test_groups_are_in_the_prompts_order_and_samples_in_theirs() -> None:
    rollout = Script()
    groups = rollout.run()
    assert [group.prompt for group in groups] == PROMPTS
    assert keys(groups) == [[(7, 0), (7, 1)], [(3, 0), (3, 1)]]
    assert [(s.prompt_id, s.index) for s in rollout.seen] == FINISHED
    assert rollout.engine.asked == (PROMPTS, 2, SamplingParams(5), 11, 4)


def test_each_sample_is_submitted_before_the_next_is_decoded() -> None:
    rollout = Script()
    rollout.run()
    expected = [(what, key) for key in FINISHED for what in ("decoded", "submitted")]
    assert rollout.events == expected


def test_a_stop_drops_what_was_begun() -> None:
    rollout = Script()
    with pytest.raises(Interrupted):
        rollout.run(stop_after=2)
    assert rollout.events[-1] == "cancelled"
    assert ("decoded", FINISHED[2]) not in rollout.events


class Shard(Ranks):
    """One of two ranks that hold an engine together; the other one answers what it is told to."""

    def __init__(self, rank: int, other: Callable[[Any], Any] = lambda mine: mine) -> None:
        super().__init__(rank, 2, tensor_parallel=2)
        self.other = other

    def gather(self, value: Any, what: str) -> list[Any]:
        return [value, self.other(value)]


def test_shards_ask_for_the_same_samples_and_each_scores_its_part() -> None:
    rollouts = [Script(), Script()]
    groups = [one.run(ranks=Shard(rank)) for rank, one in enumerate(rollouts)]
    assert [one.engine.asked[0] for one in rollouts] == [PROMPTS, PROMPTS]
    assert [keys(part) for part in groups] == [[[(7, 0), (7, 1)]], [[(3, 0), (3, 1)]]]
    submitted = [what for one in rollouts for what in one.events if what[0] == "submitted"]
    assert sorted(key for _, key in submitted) == sorted(FINISHED)


def test_a_stop_waits_for_the_samples_of_an_engine_that_ranks_share() -> None:
    """One that left its shard alone would have the other wait for it."""
    rollout = Script()
    with pytest.raises(Interrupted):
        rollout.run(stop_after=1, ranks=Shard(0))
    assert len(rollout.seen) == len(FINISHED)
    assert rollout.events[-1] == "cancelled"


def test_shards_that_saw_different_samples_are_told() -> None:
    with pytest.raises(RoostError, match="ranks 0 and 1 hold one engine and saw it draw different"):
        Script().run(ranks=Shard(0, lambda mine: (mine[0], "another")))


def test_a_failing_engine_leaves_nothing_in_the_pool() -> None:
    rollout = Script(fails_after=1)
    with pytest.raises(MemoryError):
        rollout.run()
    assert rollout.events[-1] == "cancelled"


def test_scores_find_their_samples_whichever_came_first() -> None:
    rollout = Script()
    groups = rollout.run()
    scores = finish_scoring(cast(RewardPool, rollout.pool), groups)
    order = [(7, 0), (7, 1), (3, 0), (3, 1)]
    assert [(score.prompt_id, score.index) for score in scores] == order
    for group in groups:
        for made in group.samples:
            assert made.rewards == {"r": 10.0 * made.prompt_id, "i": float(made.index)}
            assert made.reward == 10.0 * made.prompt_id + made.index


class WaitingEngine(ScriptedEngine):
    """Goes on only when the rewards have scored what it gave; a sample at a time."""

    def __init__(self, marks: Path) -> None:
        super().__init__([])
        self.marks = marks

    def generate(self, *arguments: Any, **keys: Any) -> Iterator[Sample]:
        for number, made in enumerate(super().generate(*arguments, **keys), 1):
            yield made
            give_up = time.monotonic() + 60
            while len(list(self.marks.iterdir())) < number:
                assert time.monotonic() < give_up, "it was not scored while others decoded"
                time.sleep(0.01)


def test_a_sample_is_scored_while_others_are_decoded(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "rewards.py").write_text(
        "import tempfile\n\n\ndef marked(completions):\n"
        f"    tempfile.mkstemp(dir={str(marks)!r})\n    return [1.0]\n"
    )
    config = RewardsConfig.model_validate({"functions": ["rewards.py:marked"]})
    with RewardPool(load_rewards(config, tmp_path), deadline_s=60, workers=1) as pool:
        engine = cast(Engine, WaitingEngine(marks))
        rollout = Rollout(engine, pool, PROMPTS, 2, SamplingParams(5), seed=0, step=0)
        groups = rollout.collect(StopSwitch(), lambda sample: None)
        finish_scoring(pool, groups)
    assert all(made.reward == 1.0 for group in groups for made in group.samples)
