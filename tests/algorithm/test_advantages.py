"""Advantages against numpy in float64, written from the definition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.algorithm.advantages import assign_advantages
from roost.samples import FinishReason, Group, Prompt, Sample

SCALES = ("group", "batch", "none")


def make_groups(rewards: Sequence[Sequence[float | None]]) -> list[Group]:
    """Groups with these rewards; None is an unscored sample."""
    return [
        Group(
            Prompt(number, (1,), "prompt"),
            [
                Sample(number, i, [5], [-1.0], [0.0], FinishReason.STOP, [0], [], reward=reward)
                for i, reward in enumerate(members)
            ],
        )
        for number, members in enumerate(rewards)
    ]


def assigned(rewards: Sequence[Sequence[float | None]], scale: str) -> list[list[float]]:
    groups = make_groups(rewards)
    assign_advantages(groups, scale)
    return [[sample.advantage for sample in group.samples] for group in groups]


def plain(rewards: Sequence[Sequence[float | None]], scale: str) -> list[np.ndarray]:
    """The definition, with NaN for unscored samples; only for rewards that differ."""
    arrays = [np.array([np.nan if r is None else r for r in g], np.float64) for g in rewards]
    every = np.concatenate(arrays)
    every = every[~np.isnan(every)]
    results = []
    for array in arrays:
        scored = array[~np.isnan(array)]
        centred = np.nan_to_num(array - scored.sum() / max(len(scored), 1), nan=0.0)
        if scale == "group" and len(scored) > 1:
            centred /= scored.std(ddof=1) + 1e-4
        elif scale == "batch" and len(every) > 1:
            centred /= every.std(ddof=1) + 1e-4
        results.append(centred)
    return results


@pytest.mark.parametrize("scale", SCALES)
@given(
    rewards=st.lists(
        st.lists(st.one_of(st.none(), st.integers(-50, 50).map(lambda n: n / 4)), max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_agrees_with_the_definition(scale: str, rewards: list[list[float | None]]) -> None:
    for ours, theirs in zip(assigned(rewards, scale), plain(rewards, scale), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_group_by_hand() -> None:
    [ours] = assigned([[1.0, 0.0, 0.0, 1.0]], "group")
    expected = 0.5 / (math.sqrt(1.0 / 3.0) + 1e-4)
    assert ours == pytest.approx([expected, -expected, -expected, expected])


@pytest.mark.parametrize("scale", SCALES)
def test_unscored_samples_count_in_no_mean_and_get_zero(scale: str) -> None:
    with_gap = assigned([[1.0, None, 3.0], [0.0, 4.0]], scale)
    without = assigned([[1.0, 3.0], [0.0, 4.0]], scale)
    assert with_gap[0] == [without[0][0], 0.0, without[0][1]]
    assert with_gap[1] == without[1]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rewards", [[None, 3.0, None], [None, None], [2.0], []])
def test_a_sample_without_others_to_compare_with_gets_zero(
    scale: str, rewards: list[float | None]
) -> None:
    assert assigned([rewards, [0.0, 1.0]], scale)[0] == [0.0] * len(rewards)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 1e-9, 1e9])
def test_equal_rewards_give_exactly_zero(scale: str, reward: float) -> None:
    """Their floating-point mean may differ from each of them; advantages must not."""
    assert assigned([[reward] * 7, [0.0, 1.0]], scale)[0] == [0.0] * 7


def test_batch_scaling_divides_every_group_alike() -> None:
    rewards = [[0.0, 1.0], [0.0, 10.0]]
    small, large = assigned(rewards, "batch")
    assert large[1] == pytest.approx(10 * small[1])
    assert assigned(rewards, "none") == [[-0.5, 0.5], [-5.0, 5.0]]


def test_metrics_of_a_batch() -> None:
    groups = make_groups([[1.0, 3.0, None], [0.1] * 3, [5.0]])
    names = [["a", "b"], ["a"]]
    for sample, present in zip(groups[0].samples, names, strict=False):
        sample.rewards = dict.fromkeys(present, sample.reward)
    groups[0].samples[2].rewards = {"a": None, "b": 9.0}
    metrics = assign_advantages(groups, "group").metrics()
    assert metrics["reward"] == pytest.approx(np.mean([1, 3, 0.1, 0.1, 0.1, 5]))
    assert metrics["reward_std"] == pytest.approx(math.sqrt(2) / 2)
    assert metrics["frac_reward_zero_std"] == pytest.approx(0.5)
    assert metrics["rewards/a/mean"] == pytest.approx(2.0)
    assert metrics["rewards/a/std"] == pytest.approx(math.sqrt(2))
    assert metrics["rewards/b/mean"] == pytest.approx(5.0)


def test_metrics_of_a_batch_that_nothing_scored() -> None:
    metrics = assign_advantages(make_groups([[None, None], [None]]), "group").metrics()
    assert math.isnan(metrics["reward"])
    assert metrics["reward_std"] == 0.0
    assert metrics["frac_reward_zero_std"] == 1.0
