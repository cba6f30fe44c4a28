"""What a plan says: whether the run fits, what would help, and what a resumed run goes on with."""

from __future__ import annotations

import json

import pytest

from roost.config.loading import build_config
from roost.errors import ConfigError
from roost.planner.embedded import HEADROOM, plan_embedded
from support.embedded_plans import GIB, QWEN, plan


def test_prefix_gain() -> None:
    """Eight times 640 tokens padded, or 512 and eight times 128 once; 3,200 against 2,500."""
    rollout = {"generations": 8, "max_completion_tokens": 128}
    assert plan(prompt=512, rollout=rollout).prefix_gain == pytest.approx(5120 / 1536)
    rollout = {"generations": 8, "max_completion_tokens": 300}
    assert plan(prompt=100, rollout=rollout).prefix_gain == pytest.approx(1.28)


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


def test_headroom_is_left() -> None:
    assert plan(available=80 * GIB).available_bytes == int(HEADROOM * 80 * GIB)
