"""Seconds of a step of a model that can be computed by hand."""

from __future__ import annotations

import pytest

from roost.planner.constants import Constants
from roost.planner.plan import Plan, make_plan
from roost.planner.request import Engine, Hardware, Layout, Training, Workload
from support.toy_plans import CACHE_BYTES, HEAD, LINEAR, card, request

CONSTANTS = Constants(
    bandwidth_efficiency=0.5,
    layer_launch_s=1e-3,
    sequence_s=1e-4,
    prefill_efficiency=0.25,
    full_mfu=0.5,
    adapter_mfu=0.1,
    forward_mfu=0.2,
    train_overhead_s=2.0,
    forward_overhead_s=0.5,
    sleep_s=1.0,
    host_copy_gbps=1e-3,
)
MULTIPLIED = LINEAR + HEAD


def plan(
    workload: Workload, *, training: Training | None = None, sleep: int = 0, seqs: int | None = None
) -> Plan:
    asked = request(
        Hardware(card()), workload, training, engine=Engine(max_num_seqs=seqs, graph_inside=False)
    )
    return make_plan(asked, Layout("colocate", 1, "ddp", 1, 1, 1, 0.5, sleep), CONSTANTS)


def decode(sequences: float, context: float) -> float:
    """Seconds of one decode step; reading weights takes longer than multiplying."""
    cache = sequences * context * CACHE_BYTES / 500e9
    return 2 * MULTIPLIED / 500e9 + cache + 2e-3 + sequences * 1e-4


def test_rollouts_that_are_all_resident() -> None:
    made = plan(Workload(2, 3, 32, 64))
    # Half of a completion is in the cache on average: 32 + 32 tokens. Each prompt is read once.
    prefill = 2 * MULTIPLIED * 2 * 32 / 25e12
    assert made.seconds.passes == 1
    assert made.seconds.generate == pytest.approx(64 * decode(6, 64) + prefill)


def test_rollouts_in_waves_take_turns() -> None:
    made = plan(Workload(2, 3, 32, 64), seqs=2)
    prefill = 2 * MULTIPLIED * 2 * 32 / 25e12
    assert made.seconds.concurrent == 2
    assert made.seconds.generate == pytest.approx(3 * 64 * decode(2, 64) + prefill)


def test_the_longest_completion_is_waited_for() -> None:
    work = Workload(2, 3, 32, 64, mean_completion_tokens=16)
    made = plan(work)
    fixed = 2 * MULTIPLIED / 500e9 + 2e-3
    each = (32 + 8) * CACHE_BYTES / 500e9 + 1e-4
    prefill = 2 * MULTIPLIED * 2 * 32 / 25e12
    assert made.seconds.generate == pytest.approx(64 * fixed + 6 * 16 * each + prefill)
    # Waves as long as the mean are no shorter than the one long completion.
    assert plan(work, seqs=5).seconds.generate >= made.seconds.generate * 0.99


def attention(tokens: float) -> float:
    return 2 * 2 * 4 * 16 * tokens


def test_a_full_step_multiplies_eight_times_with_recomputation() -> None:
    made = plan(Workload(2, 3, 32, 64), training=Training("full"))
    tokens = 2 * 32 + 6 * 64
    each = 8 * MULTIPLIED + 4 * attention(96)
    assert made.seconds.train == pytest.approx(each * tokens / 50e12 + 2.0)


def test_an_adapter_spares_the_gradients_of_frozen_weights() -> None:
    training = Training(gradient_checkpointing=False, share_prompts=False)
    made = plan(Workload(2, 3, 32, 64), training=training)
    each = 4 * MULTIPLIED + 2 * attention(96)
    assert made.seconds.train == pytest.approx(each * 6 * 96 / 10e12 + 2.0)


def test_log_probabilities_of_a_reference_and_of_an_old_policy() -> None:
    assert plan(Workload(2, 3, 32, 64)).seconds.logprob == 0
    training = Training(beta=0.1, logprob_passes=1)
    made = plan(Workload(2, 3, 32, 64), training=training)
    each = 2 * MULTIPLIED + attention(96)
    assert made.seconds.logprob == pytest.approx(2 * (each * 448 / 20e12 + 0.5))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sleep_moves_weights_at_level_1_alone(level: int) -> None:
    made = plan(Workload(2, 3, 32, 64), sleep=level)
    # Weights of 2 bytes to the host and back, at 1e6 bytes a second.
    moved = 2 * made.value("model.parameters") * 2 / 1e6
    expected = {0: 0.0, 1: 1.0 + moved, 2: 1.0}[level]
    assert made.seconds.sleep_wake == pytest.approx(expected)


def test_a_step_is_the_sum_of_its_phases_and_lies_within_its_band() -> None:
    made = plan(Workload(2, 3, 32, 64), training=Training(beta=0.1), sleep=1)
    names = ("generate_s", "logprob_s", "train_s", "sync_s", "sleep_wake_s")
    total = made.value("step.total_s")
    assert total == pytest.approx(sum(made.value(f"step.{name}") for name in names))
    assert made.value("step.low_s") < total < made.value("step.high_s")
    assert made.value("step.generate_low_s") < made.value("step.generate_s")
