"""Every change that is named makes the run fit, and the cheapest come first."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roost.config.loading import merge
from roost.planner.embedded_changes import SHOWN
from support.embedded_plans import GIB, plan

PRICES = {
    "leave": 0,
    "train.micro_batch_tokens": 0,
    "train.gradient_checkpointing": 0,
    "rollout.engine": 0,
    "rollout.sleep": 0,
    "model.dtype": 1,
    "train.optimizer": 1,
    "train.method": 2,
    "loss.beta": 2,
    "rollout.max_completion_tokens": 3,
}
runs = st.fixed_dictionaries(
    {
        "train": st.fixed_dictionaries(
            {
                "method": st.sampled_from(["full", "lora"]),
                "gradient_checkpointing": st.sampled_from([None, False, True]),
                "micro_batch_tokens": st.sampled_from([None, 20_000]),
            }
        ),
        "rollout": st.fixed_dictionaries(
            {
                "engine": st.sampled_from(["embedded", "vllm"]),
                "max_completion_tokens": st.sampled_from([64, 1024, 8192]),
                "cache_bytes": st.sampled_from([None, 4 * GIB]),
            }
        ),
        "loss": st.fixed_dictionaries({"beta": st.sampled_from([0.0, 0.1])}),
    }
)
machines = st.fixed_dictionaries(
    {
        "available": st.integers(GIB, 20 * GIB),
        "dtype_bytes": st.sampled_from([2, 4]),
        "device": st.sampled_from(["cpu", "cuda"]),
    }
)


def applied(sections: dict[str, Any], machine: dict[str, Any], change: str) -> Any:
    """The plan with what a suggestion says done to the recipe."""
    for one in change.split(" and "):
        if one == "leave rollout.cache_bytes out":
            sections = merge(sections, {"rollout": {"cache_bytes": None}})
            continue
        name, _, value = one.partition(" = ")
        section, _, field = name.partition(".")
        new = value.strip("'") if "'" in value else json.loads(value)
        sections = merge(sections, {section: {field: new}})
        if field == "dtype":
            machine = {**machine, "dtype_bytes": 2}
    return plan(**sections, **machine)


@settings(max_examples=150, deadline=None)
@given(runs, machines)
def test_each_change_makes_it_fit(sections: dict[str, Any], machine: dict[str, Any]) -> None:
    before = plan(**sections, **machine)
    assume(not before.fits)
    assert len(before.suggestions) <= SHOWN
    for one in before.suggestions:
        after = applied(sections, machine, one.change)
        assert after.fits, one.change
        assert after.available_bytes - after.peak.bytes == one.headroom_bytes


@settings(max_examples=150, deadline=None)
@given(runs, machines)
def test_single_changes_come_first_by_their_price(
    sections: dict[str, Any], machine: dict[str, Any]
) -> None:
    made = plan(**sections, **machine)
    assert made.fits == (not made.suggestions) or not made.suggestions
    words = [one.change for one in made.suggestions]
    alone = [PRICES[word.partition(" ")[0]] for word in words if " and " not in word]
    assert alone == sorted(alone)
    assert [" and " in word for word in words] == sorted(" and " in word for word in words)


def test_by_hand() -> None:
    """16 B a weight are 9 GiB: an adapter of 600 million weights takes 1.1 GiB and little more."""
    made = plan(available=5 * GIB)
    assert not made.fits
    assert [one.change for one in made.suggestions] == ["train.method = 'lora'"]
    both = plan(available=5 * GIB, dtype_bytes=4, train={"method": "full"})
    assert both.suggestions[0].change == "train.method = 'lora'"
    assert plan(available=GIB // 8).suggestions == ()
