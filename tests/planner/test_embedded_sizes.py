"""Bytes of a run's terms, counted by hand."""

from __future__ import annotations

import pytest

from roost.planner.embedded_sizes import slot
from support.embedded_plans import GIB, PARAMETERS, plan, term


@pytest.mark.parametrize(("dtype_bytes", "weights", "states"), [(2, 2, 16), (4, 4, 12)])
@pytest.mark.parametrize("phase", ["generate", "train"])
def test_weights_and_optimizer(dtype_bytes: int, weights: int, states: int, phase: str) -> None:
    """Master, gradient and two moments in float32; a float32 weight is its own master."""
    made = plan(dtype_bytes=dtype_bytes)
    assert term(made, phase, "weights") == weights * PARAMETERS
    assert term(made, phase, "optimizer") == states * PARAMETERS
    assert made.trainable_parameters == PARAMETERS


def test_an_adapter_has_states_of_its_own_only() -> None:
    made = plan(train={"method": "lora"}, lora={"rank": 8, "targets": ["q_proj", "v_proj"]})
    adapter = 28 * 8 * ((1024 + 2048) + (1024 + 1024))
    assert made.trainable_parameters == adapter
    assert term(made, "train", "optimizer") == 16 * adapter
    assert term(made, "train", "weights") == 2 * (PARAMETERS + adapter)
    assert made.final_bytes == 2 * adapter
    assert made.checkpoint_bytes == 14 * adapter


@pytest.mark.parametrize(("method", "copies"), [("full", 1), ("lora", 0)])
def test_the_kl_keeps_a_second_model_in_full_training_only(method: str, copies: int) -> None:
    made = plan(train={"method": method}, loss={"beta": 0.1})
    expected = 2 * PARAMETERS if copies else None
    assert term(made, "train", "reference") == term(made, "generate", "reference") == expected


def test_the_process_is_counted_in_need_and_room() -> None:
    """What is held already is not taken from what is left."""
    without, with_process = plan(), plan(process=5 * GIB)
    assert with_process.peak.bytes - without.peak.bytes == 5 * GIB
    assert with_process.available_bytes - without.available_bytes == 5 * GIB


def test_checkpointing_saves_activations() -> None:
    kept = plan(train={"gradient_checkpointing": False, "micro_batch_tokens": 4096})
    again = plan(train={"gradient_checkpointing": True, "micro_batch_tokens": 4096})
    one, other = (term(made, "train", "activations") for made in (kept, again))
    assert one is not None
    assert other is not None
    assert one > 5 * other


def test_slots_are_those_of_the_kernel() -> None:
    from roost.model.flash import padded

    assert [slot(n) for n in range(1, 700)] == [padded(n) for n in range(1, 700)]
