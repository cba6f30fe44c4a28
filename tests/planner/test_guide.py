"""The figures of a hardware guide, through `roost plan --convention listed --json`.

Expected values and their tolerances come from ``data/guide_numbers.json`` alone;
``data/guide_plans.toml`` says which plan each speaks of, and where in its JSON the figure stands.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.plans import plan_json

DATA = Path(__file__).parent / "data"
GUIDE = json.loads((DATA / "guide_numbers.json").read_text())
PLANS = tomllib.loads((DATA / "guide_plans.toml").read_text())
EXPECTED = {number["name"]: number for number in GUIDE["numbers"]}
ROLLOUTS = {row["name"]: row["rollouts_floor"] for row in GUIDE["unprinted_table"]}

NO_PLAN = {"unsloth_gptoss_step_time"}
"""4 hours over 1,000 steps, both quoted from a vendor: the figure of no plan."""


@cache
def plan(name: str) -> dict[str, Any]:
    options = f"{PLANS['plans'][name]} {PLANS['step']} --convention listed"
    return plan_json(*shlex.split(options))


def at(found: dict[str, Any], path: str) -> float:
    section, key = path.split(".")
    return float(found[section][key])


@pytest.mark.parametrize("name", PLANS["figures"])
def test_figure_of_the_guide(name: str) -> None:
    where, expected = PLANS["figures"][name], EXPECTED[name]
    found = plan(where["plan"])
    value = at(found, where["path"]) / where.get("unit", 1)
    if "per" in where:
        value /= at(found, where["per"])
    # The printed digits' own tolerance; the little more is for a float's rounding of it.
    tolerance = expected["tolerance_abs"] + 1e-9
    assert value == pytest.approx(expected["expected_as_printed"], abs=tolerance, rel=0)


@pytest.mark.parametrize("row", ROLLOUTS)
def test_rollouts_of_the_guides_layouts(row: str) -> None:
    assert plan(PLANS["rollouts"][row])["rollout"]["resident_rollouts"] == ROLLOUTS[row]


def test_every_figure_that_is_not_quoted_is_tested() -> None:
    derived = {name for name, number in EXPECTED.items() if number["kind"] != "quoted"}
    assert len(derived) == 37
    assert derived == {*PLANS["figures"], *NO_PLAN}


def test_full_parameter_training_of_32b_fits_one_server_of_eight() -> None:
    full = plan_json(
        *("--model", "Qwen3-32B", "--gpu", "RTX PRO 6000", "--gpus", "8", "--method", "full"),
        *("--strategy", "fsdp", "--convention", "listed"),
    )
    assert full["fits"]
    # 16 bytes a parameter over eight cards, by hand.
    assert full["trainer"]["state_bytes_per_gpu"] == 16 * 32_762_123_264 // 8
