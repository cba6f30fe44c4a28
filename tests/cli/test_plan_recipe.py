"""`roost plan RECIPE`: the run on this machine, or the recipe on other cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roost.cli.main import main
from support.plans import plan_json, run_plan

RECIPES = Path(__file__).parent.parent.parent / "recipes"
GUIDE = Path(__file__).parent.parent / "planner" / "data" / "guide_numbers.json"

SMALL = """
model = "tiny"
data = { source = "arithmetic", prompts_per_step = 2 }
rewards = ["numeric"]
rollout = { generations = 4, max_completion_tokens = 8 }
train = { steps = 2, method = "METHOD" }
eval = { prompts = 2 }
"""


def write(path: Path, text: str = SMALL, method: str = "full") -> str:
    file = path / "recipe.toml"
    file.write_text(text.replace("METHOD", method))
    return str(file)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_it_is_the_plan_of_what_train_would_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    recipe = write(tmp_path, method=method)
    planned = plan_json(recipe)
    capsys.readouterr()
    assert main(["train", recipe, "--dry-run", "--json"]) == 0
    trained: dict[str, Any] = json.loads(capsys.readouterr().out)["plan"]

    def settled(plan: dict[str, Any]) -> dict[str, Any]:
        # What the process holds and the machine has free moves from one moment to the next.
        phases = [
            [term for term in phase["terms"] if term["name"] != "process"]
            for phase in plan["phases"]
        ]
        names = ("fits", "cache_bytes", "micro_batch_tokens", "resident_rollouts")
        return {"phases": phases, **{name: plan[name] for name in names}}

    assert settled(planned) == settled(trained)
    assert planned["engine"] == "embedded"
    assert planned["trainer"]["adapter_parameters"] == (
        trained["trainable_parameters"] if method == "lora" else 0
    )


def test_a_run_that_cannot_fit_here_exits_with_1_and_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.run.prepare.available_bytes", lambda device: 2**20)
    code, text = run_plan(write(tmp_path))
    assert code == 1
    assert "does not fit" in text
    assert "train" in text
    assert not plan_json(write(tmp_path), code=1)["fits"]


def test_terms_of_this_machines_plan_are_explained(tmp_path: Path) -> None:
    code, text = run_plan(write(tmp_path), "--explain", "phases.train.optimizer")
    assert code == 0
    assert "8 moments" in text


def test_cards_of_the_plan_section_are_planned_for(tmp_path: Path) -> None:
    recipe = write(tmp_path, SMALL + 'plan = { gpu = "L4", gpus = 2, mode = "server" }\n')
    plan = plan_json(recipe)
    assert plan["hardware"]["card"] == "L4"
    assert plan["layout"]["mode"] == "server"
    assert plan["rollout"]["rollouts_per_step"] == 8
    assert not {"mode", "gpus", "prompts", "generations", "method"} & plan["chosen"].keys()


def test_an_option_goes_over_the_recipe_and_set_into_it(tmp_path: Path) -> None:
    recipe = write(tmp_path, SMALL + 'plan = { gpu = "L4", gpus = 2 }\n')
    plan = plan_json(
        recipe, "--gpu", "A10", "--generations", "16", "--set", "data.prompts_per_step=3"
    )
    assert plan["hardware"]["card"] == "A10"
    assert plan["rollout"]["rollouts_per_step"] == 48


def test_a_small_model_is_planned_in_the_precision_it_runs_in(tmp_path: Path) -> None:
    recipe = write(tmp_path)
    assert plan_json(recipe, "--gpu", "L4", "--gpus", "1")["trainer"]["state_bytes"] == (
        16 * plan_json(recipe)["model"]["parameters"]
    ), "float32: weight, gradient and two moments"


def test_train_says_that_it_does_not_run_on_the_cards_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(tmp_path, SMALL + 'plan = { gpu = "L4", gpus = 2 }\n')
    assert main(["train", recipe, "--dry-run"]) == 0
    assert "[plan] is for L4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "row", "engines"),
    [
        ("guide-8b-two-cards", None, 2),
        ("guide-32b-four-cards", "32B, TP2 RTX PRO 6000", 1),
        ("guide-70b-eight-cards", "70B, TP4 H200 NVL", 1),
    ],
)
def test_recipes_of_the_guide_hold_its_rollouts(name: str, row: str | None, engines: int) -> None:
    guide = json.loads(GUIDE.read_text())
    if row is None:
        numbers = {number["name"]: number for number in guide["numbers"]}
        expected = numbers["rollouts_0.5"]["expected_as_printed"]
    else:
        expected = {r["name"]: r["rollouts_floor"] for r in guide["unprinted_table"]}[row]
    recipe = str(RECIPES / f"{name}.toml")
    plan = plan_json(recipe, "--convention", "listed")
    assert plan["fits"]
    assert plan["rollout"]["resident_rollouts"] == expected
    assert plan["layout"]["rollout"]["replicas"] == engines
    assert plan_json(recipe)["fits"]
