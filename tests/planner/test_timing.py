"""Seconds of a step of a model that can be computed by hand."""

from __future__ import annotations

import pytest

from roost.planner.request import Training, Workload
from support.toy_plans import MULTIPLIED, timed_plan


def attention(tokens: float) -> float:
    return 2 * 2 * 4 * 16 * tokens


def test_a_full_step_multiplies_eight_times_with_recomputation() -> None:
    made = timed_plan(Workload(2, 3, 32, 64), training=Training("full"))
    tokens = 2 * 32 + 6 * 64
    each = 8 * MULTIPLIED + 4 * attention(96)
    assert made.seconds.train == pytest.approx(each * tokens / 50e12 + 2.0)


def test_an_adapter_spares_the_gradients_of_frozen_weights() -> None:
    training = Training(gradient_checkpointing=False, share_prompts=False)
    made = timed_plan(Workload(2, 3, 32, 64), training=training)
    each = 4 * MULTIPLIED + 2 * attention(96)
    assert made.seconds.train == pytest.approx(each * 6 * 96 / 10e12 + 2.0)


def test_log_probabilities_of_a_reference_and_of_an_old_policy() -> None:
    assert timed_plan(Workload(2, 3, 32, 64)).seconds.logprob == 0
    training = Training(beta=0.1, logprob_passes=1)
    made = timed_plan(Workload(2, 3, 32, 64), training=training)
    each = 2 * MULTIPLIED + attention(96)
    assert made.seconds.logprob == pytest.approx(2 * (each * 448 / 20e12 + 0.5))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sleep_moves_weights_at_level_1_alone(level: int) -> None:
    made = timed_plan(Workload(2, 3, 32, 64), sleep=level)
    # Weights of 2 bytes to the host and back, at 1e6 bytes a second.
    moved = 2 * made.value("model.parameters") * 2 / 1e6
    expected = {0: 0.0, 1: 1.0 + moved, 2: 1.0}[level]
    assert made.seconds.sleep_wake == pytest.approx(expected)


def test_a_step_is_the_sum_of_its_phases_and_lies_within_its_band() -> None:
    made = timed_plan(Workload(2, 3, 32, 64), training=Training(beta=0.1), sleep=1)
    names = ("generate_s", "logprob_s", "train_s", "sync_s", "sleep_wake_s")
    total = made.value("step.total_s")
    assert total == pytest.approx(sum(made.value(f"step.{name}") for name in names))
    assert made.value("step.low_s") < total < made.value("step.high_s")
    assert made.value("step.generate_low_s") < made.value("step.generate_s")
