"""What a plan chooses, by hand at the edges, and what holds of every choice."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roost.config.loading import merge
from roost.planner.embedded import HEADROOM
from roost.planner.embedded_choice import MICRO_BATCH_TOKENS
from roost.planner.embedded_sizes import slot
from support.embedded_plans import GIB, KV_TOKEN, QWEN, plan, term


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


def test_activations_are_kept_where_there_is_room() -> None:
    """28 layers of 73,728 B a token take 2 GiB at 1,024 tokens, beside 10 GiB of states."""
    roomy, tight = plan(available=15 * GIB), plan(available=13 * GIB)
    assert not roomy.gradient_checkpointing
    assert tight.gradient_checkpointing
    assert tight.micro_batch_tokens == roomy.micro_batch_tokens
    asked = plan(available=80 * GIB, train={"gradient_checkpointing": True})
    assert asked.gradient_checkpointing


def test_a_gpu_takes_larger_micro_batches() -> None:
    assert plan(device="cuda").micro_batch_tokens == MICRO_BATCH_TOKENS["cuda"]


def test_a_gpu_keeps_its_cache_where_training_leaves_room_for_it() -> None:
    """The recorded steps' logits: (8 + 2) B x rows x vocabulary, held in both phases then."""
    roomy = plan(device="cuda", available=80 * GIB)
    assert roomy.keeps_cache
    kept, decoding = term(roomy, "train", "kept cache"), term(roomy, "generate", "key-value cache")
    assert kept == decoding == roomy.cache_bytes
    recorded = term(roomy, "generate", "recorded steps")
    assert recorded == term(roomy, "train", "recorded steps")
    assert recorded * 16 == term(roomy, "generate", "logits") * 10
    # A byte less than both need, and it is given up before anything else is.
    need = next(phase.bytes for phase in roomy.phases if phase.name == "train")
    tight = plan(device="cuda", available=int(need / HEADROOM) - 2)
    assert tight.fits
    assert not tight.keeps_cache
    assert tight.micro_batch_tokens == roomy.micro_batch_tokens
    assert tight.gradient_checkpointing == roomy.gradient_checkpointing


def test_a_cpu_keeps_no_cache() -> None:
    made = plan(available=80 * GIB)
    assert not made.keeps_cache
    names = {term.name for phase in made.phases for term in phase.terms}
    assert not names & {"kept cache", "recorded steps"}


def test_weights_are_packed_for_decoding_where_that_fits() -> None:
    """2 B of every parameter but the norms' on top of the engine's phases alone."""
    roomy = plan(available=80 * GIB)
    assert roomy.packs_weights
    packed = term(roomy, "generate", "packed weights")
    assert packed == 2 * QWEN.multiplied_parameters
    assert term(roomy, "train", "packed weights") is None
    assert not plan(available=80 * GIB, dtype_bytes=4).packs_weights
    assert not plan(available=80 * GIB, device="cuda").packs_weights
    # A byte less than that needs, and it is given up; all else is as before.
    need = max(p.bytes for p in roomy.phases if p.name != "train")
    tight = plan(available=int(need / HEADROOM) - 2, train={"gradient_checkpointing": True})
    assert tight.fits
    assert not tight.packs_weights
    assert tight.cache_bytes == roomy.cache_bytes


def test_nothing_is_left_of_a_machine_that_is_too_small() -> None:
    """Even then there is a plan to show: one sample at a time."""
    made = plan(available=GIB // 8, rollout={"max_completion_tokens": 100})
    assert made.resident_rollouts == 1
    assert made.micro_batch_tokens == 200
    assert not made.fits


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
