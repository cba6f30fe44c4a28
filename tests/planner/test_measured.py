"""What the pilot keeps, and the seconds that a plan takes from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from roost.config.loading import build_config
from roost.planner.embedded import EmbeddedPlan, plan_embedded
from roost.planner.measured import (
    FORMAT,
    Pilot,
    PilotPlace,
    Speeds,
    Workload,
    pilot_path,
    read_pilot,
    recipe_digest,
    write_pilot,
)
from support.embedded_plans import GIB, QWEN, term

PLACE = PilotPlace("a processor", 2, "2.13", "a model", "bfloat16", "full")
SPEEDS = Speeds(
    prefill_token_s=1e-3,
    decode_step_s=0.1,
    decode_row_s=0.01,
    decode_context_s=1e-5,
    kept_token_s=0.02,
    recomputed_token_s=0.03,
    pack_s=0.5,
    optimizer_parameter_s=1e-9,
)
CONFIG = build_config(
    {
        "data": {"prompts_per_step": 2},
        "rollout": {"generations": 4, "max_completion_tokens": 50},
        "eval": {"prompts": 0},
    }
)
PILOT = Pilot(PLACE, SPEEDS, 0.05, 10, -20)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROOST_HOME", str(tmp_path))
    return tmp_path


def planned(pilot: Pilot | None) -> EmbeddedPlan:
    return plan_embedded(
        CONFIG,
        QWEN,
        available_bytes=80 * GIB,
        dtype_bytes=2,
        prompt_tokens=100,
        mean_prompt=80.0,
        pilot=pilot,
    )


def test_without_a_pilot_the_seconds_are_said_to_be_unknown() -> None:
    plan = planned(None)
    assert plan.step is None
    assert plan.as_dict()["step"] is None
    assert "roost pilot" in plan.short()[-1]


def test_seconds_of_a_known_workload() -> None:
    """160 prompt tokens; 30 steps, 200 rows that look back at 80 + 12.5 tokens on average."""
    load = Workload(tokens=200, longest=30, computed=300)
    step = planned(replace(PILOT, workloads={recipe_digest(CONFIG): load})).step
    assert step is not None
    assert step.generate_s == pytest.approx(0.16 + 3 + 200 * (0.01 + 92.5e-5))
    assert step.train_s == pytest.approx(300 * 0.02 + 0.5 + 0.596049920)
    assert step.source == "measured here"
    assert step.low_s == pytest.approx(0.85 * step.total_s)
    assert step.high_s > step.total_s


def test_an_unknown_recipe_is_planned_at_its_full_budget_and_bounded_above_only() -> None:
    step = planned(PILOT).step
    assert step is not None
    assert step.generate_s == pytest.approx(0.16 + 5 + 400 * (0.01 + 105e-5))
    assert step.low_s == 0
    assert step.high_s == pytest.approx(1.15 * step.total_s)


def test_residuals_are_terms_of_their_phase() -> None:
    before, after = planned(None), planned(PILOT)
    assert term(after, "generate", "residual") == 10
    assert term(after, "train", "residual") == -20
    assert [a.bytes - b.bytes for a, b in zip(after.phases, before.phases, strict=True)] == [
        10,
        -20,
    ]


def test_recipes_of_one_place_are_kept_side_by_side() -> None:
    one, other = Workload(1, 2, 3), Workload(4, 5, 6)
    write_pilot(replace(PILOT, workloads={"one": one}))
    write_pilot(replace(PILOT, spread=0.2, workloads={"other": other}))
    read = read_pilot(PLACE)
    assert read is not None
    assert read.spread == 0.2
    assert read.workloads == {"one": one, "other": other}


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"format": 1}', '{"format": 0}'])
def test_a_damaged_or_foreign_file_counts_as_none(damage: str) -> None:
    path = write_pilot(PILOT)
    path.write_text(damage)
    assert read_pilot(PLACE) is None
    write_pilot(PILOT)
    assert read_pilot(PLACE) == PILOT


def test_another_format_is_not_read() -> None:
    path = write_pilot(PILOT)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": FORMAT + 1}))
    assert read_pilot(PLACE) is None


@pytest.mark.parametrize(
    "other", [{"threads": 3}, {"torch": "2.14"}, {"dtype": "float32"}, {"method": "lora"}]
)
def test_another_place_has_a_file_of_its_own(other: dict[str, object]) -> None:
    write_pilot(PILOT)
    place = replace(PLACE, **other)  # type: ignore[arg-type]
    assert pilot_path(place) != pilot_path(PLACE)
    assert read_pilot(place) is None


def test_the_cache_folder_of_the_desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROOST_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert pilot_path(PLACE).parent == tmp_path / "cache" / "roost" / "pilot"
