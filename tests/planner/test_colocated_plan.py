"""The share of a vLLM engine that lives beside the trainer, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from roost.config.loading import build_config, merge
from roost.planner.colocated import BATCH_TOKENS, BUCKET_BYTES
from roost.planner.embedded import EmbeddedPlan, plan_embedded
from roost.planner.models import find_shape

GIB = 2**30
QWEN = find_shape("Qwen3-0.6B").shape
PARAMETERS = 596_049_920
KV_TOKEN = 2 * 28 * 8 * 128 * 2
ROLLOUTS = 8 * 8
RECOMPUTED = {"gradient_checkpointing": True}


def plan(
    available: int = 80 * GIB, *, device: str = "cpu", prompt: int = 100, **sections: Any
) -> EmbeddedPlan:
    return plan_embedded(
        build_config(merge({"rollout": {"engine": "vllm"}, "eval": {"prompts": 0}}, sections)),
        QWEN,
        available_bytes=available,
        dtype_bytes=2,
        prompt_tokens=prompt,
        device=device,
    )


def terms(made: EmbeddedPlan, phase: str) -> dict[str, int]:
    [chosen] = [p for p in made.phases if p.name == phase]
    return {term.name: term.bytes for term in chosen.terms}


@pytest.mark.parametrize("phase", ["generate", "train"])
def test_an_engine_that_stays_awake_is_held_in_both_phases(phase: str) -> None:
    made = plan()
    held = terms(made, phase)
    assert held["engine weights"] == held["weights"] == 2 * PARAMETERS
    assert held["engine activations"] == BATCH_TOKENS * 6 * (3072 + 1024)
    assert held["key-value cache"] == made.cache_bytes
    assert made.sleep_level == 0


def test_its_cache_holds_every_sample_in_whole_blocks_and_one_more() -> None:
    made = plan(rollout={"max_completion_tokens": 60})
    assert made.cache_bytes == KV_TOKEN * 160 * (ROLLOUTS + 1)
    assert made.resident_rollouts == ROLLOUTS


@pytest.mark.parametrize(
    ("train", "sent"), [({}, BUCKET_BYTES), ({"method": "lora"}, 2 * 28 * 16 * (
        (1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024) + 3 * (1024 + 3072)
    ))],
)  # fmt: skip
def test_a_sync_holds_one_bucket(train: dict[str, Any], sent: int) -> None:
    made = plan(train=train)
    assert terms(made, "generate")["sync bucket"] == sent
    assert "sync bucket" not in terms(made, "train")


def test_it_sleeps_only_where_it_must_and_can() -> None:
    awake = plan(device="cuda", train=RECOMPUTED)
    assert awake.sleep_level == 0
    tight = int(awake.phases[0].bytes / 0.9) - GIB
    asleep = plan(tight, device="cuda", train=RECOMPUTED)
    assert asleep.sleep_level == 1
    assert "engine weights" not in terms(asleep, "train")
    assert terms(asleep, "generate")["engine weights"] == 2 * PARAMETERS
    assert plan(tight, device="cpu").sleep_level == 0
    assert plan(device="cuda", rollout={"sleep": 2}).sleep_level == 2
    assert plan(tight, device="cuda", rollout={"sleep": 0}).sleep_level == 0


def test_where_memory_is_short_the_cache_shrinks_until_both_phases_fit() -> None:
    full = plan(train=RECOMPUTED)
    short = plan(int(full.peak.bytes / 0.9) - GIB)
    assert short.cache_bytes < full.cache_bytes
    assert short.fits


def test_the_embedded_engine_counts_none_of_it() -> None:
    made = plan(rollout={"engine": "embedded"})
    for phase in ("generate", "train"):
        assert not {"engine weights", "engine activations", "sync bucket"} & set(terms(made, phase))
    assert "key-value cache" not in terms(made, "train")


def served(available: int = 80 * GIB, *, device: str = "cpu", **rollout: Any) -> EmbeddedPlan:
    train = rollout.pop("train", {})
    rollout = {"mode": "server", "launch": True, **rollout}
    return plan(available, device=device, rollout=rollout, train=train)


def test_a_server_takes_nothing_of_the_trainers_device_but_the_bucket() -> None:
    """On GPUs it has a card of its own, as large as the trainer's."""
    made = served(device="cuda")
    own = {"engine weights", "engine activations", "key-value cache"}
    for phase in ("generate", "train"):
        assert not own & set(terms(made, phase))
    assert own < set(terms(made, "server"))
    assert terms(made, "generate")["sync bucket"] == BUCKET_BYTES
    assert made.available_bytes == int(0.9 * 80 * GIB)
    assert made.cache_bytes == KV_TOKEN * 640 * (ROLLOUTS + 1)


def test_servers_on_a_cpu_share_its_memory() -> None:
    one, two = served(), served(replicas=2)
    server = sum(terms(one, "server").values())
    assert one.available_bytes == int(0.9 * 80 * GIB) - server
    assert two.available_bytes == int(0.9 * 80 * GIB) - 2 * server


def test_servers_on_a_small_cpu_get_what_the_trainer_leaves() -> None:
    made = served(17 * GIB, train=RECOMPUTED, replicas=2)
    assert made.fits
    assert made.cache_bytes < served(replicas=2).cache_bytes


def test_nothing_is_planned_of_servers_that_run_already() -> None:
    made = served(launch=False, servers=["http://127.0.0.1:1"])
    assert [phase.name for phase in made.phases] == ["generate", "train"]
    assert made.available_bytes == int(0.9 * 80 * GIB)
