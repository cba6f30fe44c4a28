"""The plan of a run: its bytes counted by hand, and what holds of every plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roost.config.loading import build_config, merge
from roost.errors import ConfigError
from roost.planner.embedded import (
    HEADROOM,
    MICRO_BATCH_TOKENS,
    EmbeddedPlan,
    plan_embedded,
    slot,
)
from roost.planner.model_shape import ModelShape
from roost.planner.models import find_shape

GIB = 2**30
QWEN = find_shape("Qwen3-0.6B").shape
PARAMETERS = 596_049_920
KV_TOKEN = 2 * 28 * 8 * 128


def plan(
    shape: ModelShape = QWEN,
    *,
    available: int = 80 * GIB,
    dtype_bytes: int = 2,
    prompt: int = 100,
    process: int = 0,
    **sections: Any,
) -> EmbeddedPlan:
    return plan_embedded(
        build_config(sections),
        shape,
        available_bytes=available,
        dtype_bytes=dtype_bytes,
        prompt_tokens=prompt,
        process_bytes=process,
    )


def term(made: EmbeddedPlan, phase: str, name: str) -> int | None:
    [chosen] = [p for p in made.phases if p.name == phase]
    return next((t.bytes for t in chosen.terms if t.name == name), None)


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


def test_room_for_all_samples_where_there_is_room() -> None:
    """8 prompts once and 64 completions of a whole number of chunks."""
    made = plan(prompt=256, rollout={"max_completion_tokens": 512}, eval={"prompts": 0})
    assert made.cache_bytes == 2 * KV_TOKEN * (8 * 256 + 64 * 512)
    assert made.resident_rollouts == made.rollouts_per_step == 64
    assert made.micro_batch_tokens == MICRO_BATCH_TOKENS["cpu"]
    assert made.fits


def test_what_is_set_is_taken() -> None:
    made = plan(
        rollout={"cache_bytes": 3 * GIB, "max_sequences": 5}, train={"micro_batch_tokens": 1234}
    )
    assert made.cache_bytes == 3 * GIB
    assert term(made, "generate", "key-value cache") == 3 * GIB
    assert made.resident_rollouts == 5
    assert made.micro_batch_tokens == 1234


def test_prefix_gain() -> None:
    """Eight times 640 tokens padded, or 512 and eight times 128 once; 3,200 against 2,500."""
    rollout = {"generations": 8, "max_completion_tokens": 128}
    assert plan(prompt=512, rollout=rollout).prefix_gain == pytest.approx(5120 / 1536)
    rollout = {"generations": 8, "max_completion_tokens": 300}
    assert plan(prompt=100, rollout=rollout).prefix_gain == pytest.approx(1.28)


def test_the_process_is_counted_in_need_and_room() -> None:
    """What is held already is not taken from what is left."""
    without, with_process = plan(), plan(process=5 * GIB)
    assert with_process.peak.bytes - without.peak.bytes == 5 * GIB
    assert with_process.available_bytes - without.available_bytes == 5 * GIB


def test_activations_are_kept_where_there_is_room() -> None:
    """28 layers of 73,728 B a token take 2 GiB at 1,024 tokens, beside 10 GiB of states."""
    roomy, tight = plan(available=15 * GIB), plan(available=13 * GIB)
    assert not roomy.gradient_checkpointing
    assert tight.gradient_checkpointing
    assert tight.micro_batch_tokens == roomy.micro_batch_tokens
    asked = plan(available=80 * GIB, train={"gradient_checkpointing": True})
    assert asked.gradient_checkpointing


def test_a_run_goes_on_with_what_was_chosen() -> None:
    """With less memory free, a resumed run would choose otherwise, and round otherwise."""
    config = build_config({})
    before = plan_embedded(config, QWEN, available_bytes=80 * GIB, dtype_bytes=2, prompt_tokens=100)
    resolved = before.resolve(config)
    after = plan_embedded(
        resolved, QWEN, available_bytes=14 * GIB, dtype_bytes=2, prompt_tokens=100
    )
    assert after.micro_batch_tokens == before.micro_batch_tokens
    assert after.gradient_checkpointing == before.gradient_checkpointing
    assert before.resolve(resolved) == resolved


def test_a_gpu_takes_larger_micro_batches() -> None:
    on_gpu = plan_embedded(
        build_config({}),
        QWEN,
        available_bytes=80 * GIB,
        dtype_bytes=2,
        prompt_tokens=100,
        device="cuda",
    )
    assert on_gpu.micro_batch_tokens == MICRO_BATCH_TOKENS["cuda"]


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


def test_a_run_that_does_not_fit_is_refused_with_what_helps() -> None:
    made = plan(available=8 * GIB)
    assert not made.fits
    short = f"{(made.peak.bytes - made.available_bytes) / GIB:.2f} GiB short"
    with pytest.raises(ConfigError) as error:
        made.require_fit()
    message = str(error.value)
    for part in ("does not fit: the train phase", short, "optimizer", "train.method = 'lora'"):
        assert part in message
    plan().require_fit()


def test_json_says_all() -> None:
    made = plan()
    table = json.loads(json.dumps(made.as_dict()))
    assert table["fits"] is True
    assert table["micro_batch_tokens"] == made.micro_batch_tokens
    totals = {phase["name"]: phase["bytes"] for phase in table["phases"]}
    sums = {p["name"]: sum(t["bytes"] for t in p["terms"]) for p in table["phases"]}
    assert totals == sums == {phase.name: phase.bytes for phase in made.phases}


configs = st.fixed_dictionaries(
    {
        "train": st.fixed_dictionaries(
            {
                "method": st.sampled_from(["full", "lora"]),
                "gradient_checkpointing": st.sampled_from([None, False, True]),
            }
        ),
        "rollout": st.fixed_dictionaries(
            {
                "generations": st.integers(2, 32),
                "max_completion_tokens": st.integers(1, 4096),
            }
        ),
        "loss": st.fixed_dictionaries({"beta": st.sampled_from([0.0, 0.1])}),
        "data": st.fixed_dictionaries({"prompts_per_step": st.integers(1, 64)}),
        "eval": st.fixed_dictionaries({"prompts": st.integers(0, 300)}),
    }
)
machines = st.fixed_dictionaries(
    {
        "available": st.integers(GIB, 100 * GIB),
        "dtype_bytes": st.sampled_from([2, 4]),
        "prompt": st.integers(1, 3000),
        "process": st.integers(0, GIB),
    }
)


def least(sections: dict[str, Any], prompt: int, dtype_bytes: int) -> dict[str, Any]:
    """The same run with room for one sample at a time."""
    completion = sections["rollout"]["max_completion_tokens"]
    cache = dtype_bytes * KV_TOKEN * (slot(prompt) + slot(completion))
    recompute = sections["train"]["gradient_checkpointing"] is not False
    changes = {
        "rollout": {"cache_bytes": cache},
        "train": {"micro_batch_tokens": prompt + completion, "gradient_checkpointing": recompute},
    }
    return merge(sections, changes)


@settings(max_examples=300, deadline=None)
@given(configs, machines)
def test_what_fits_somehow_fits_as_planned(sections: dict[str, Any], machine: Any) -> None:
    smallest = least(sections, machine["prompt"], machine["dtype_bytes"])
    assume(plan(**smallest, **machine).fits)
    assert plan(**sections, **machine).fits


@settings(max_examples=200, deadline=None)
@given(configs, machines)
def test_memory_that_is_there_is_used(sections: dict[str, Any], machine: Any) -> None:
    """A chosen micro-batch or cache is small only where a larger one would not fit."""
    made = plan(**sections, **machine)
    assume(made.fits)
    if made.micro_batch_tokens < MICRO_BATCH_TOKENS["cpu"]:
        larger = {"micro_batch_tokens": int(1.05 * made.micro_batch_tokens) + 1}
        assert not plan(**merge(sections, {"train": larger}), **machine).fits
    if made.gradient_checkpointing and sections["train"]["gradient_checkpointing"] is None:
        tokens = max(made.micro_batch_tokens, MICRO_BATCH_TOKENS["cpu"])
        kept = {"gradient_checkpointing": False, "micro_batch_tokens": tokens}
        assert not plan(**merge(sections, {"train": kept}), **machine).fits
    if made.resident_rollouts < made.rollouts_per_step:
        larger = {"cache_bytes": int(1.05 * made.cache_bytes) + machine["dtype_bytes"] * KV_TOKEN}
        more = plan(**merge(sections, {"rollout": larger}), **machine)
        assert not more.fits or more.resident_rollouts == made.resident_rollouts


@settings(max_examples=100, deadline=None)
@given(configs, machines, st.integers(1, 20))
def test_more_memory_is_never_worse(sections: dict[str, Any], machine: Any, factor: int) -> None:
    small = plan(**sections, **machine)
    large = plan(**sections, **{**machine, "available": factor * machine["available"]})
    assert large.fits >= small.fits
    assert large.cache_bytes >= small.cache_bytes
    assert large.micro_batch_tokens >= small.micro_batch_tokens


@settings(max_examples=200, deadline=None)
@given(configs, machines)
def test_each_change_saves_what_it_says(sections: dict[str, Any], machine: Any) -> None:
    """Applied with the rest as planned, the phase shrinks by as much, to the last 2 %."""
    before = plan(**sections, **machine)
    held = merge(
        sections,
        {
            "rollout": {"cache_bytes": before.cache_bytes},
            "train": {
                "micro_batch_tokens": before.micro_batch_tokens,
                "gradient_checkpointing": before.gradient_checkpointing,
            },
        },
    )
    for change, saved in before.shorter_bytes:
        changed, settings_ = dict(held), dict(machine)
        if change.startswith("model.dtype"):
            settings_["dtype_bytes"] = 2
        else:
            name, _, value = change.partition(" = ")
            section, _, field = name.partition(".")
            new = value.strip("'") if "'" in value else json.loads(value)
            changed = merge(held, {section: {field: new}})
        after = plan(**changed, **settings_)
        [then] = [phase for phase in after.phases if phase.name == before.peak.name]
        assert saved == pytest.approx(before.peak.bytes - then.bytes, rel=0.02), change
    assert [saved for _, saved in before.shorter_bytes] == sorted(
        (saved for _, saved in before.shorter_bytes), reverse=True
    )


def test_nothing_is_left_of_a_machine_that_is_too_small() -> None:
    """Even then there is a plan to show: one sample at a time."""
    made = plan(available=GIB // 8, rollout={"max_completion_tokens": 100})
    assert made.resident_rollouts == 1
    assert made.micro_batch_tokens == 200
    assert not made.fits


def test_headroom_is_left() -> None:
    assert plan(available=80 * GIB).available_bytes == int(HEADROOM * 80 * GIB)
