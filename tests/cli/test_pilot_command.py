"""`roost pilot` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roost.cli.main import main

RECIPE = """
model = "tiny"
rewards = ["numeric"]

[data]
source = "arithmetic"
options = { size = 40 }
prompts_per_step = 2

[rollout]
generations = 2
max_completion_tokens = 6

[eval]
prompts = 4
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ROOST_HOME", str(tmp_path / "home"))
    path = tmp_path / "run.toml"
    path.write_text(RECIPE)
    return str(path)


def test_a_pilot_measures_and_the_plan_says_so(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", recipe]) == 0
    assert "`roost pilot` measures" in capsys.readouterr().out
    assert main(["pilot", recipe, "--steps", "1"]) == 0
    told = capsys.readouterr().out
    [kept] = (tmp_path / "home" / "pilot").iterdir()
    for part in ("worst case: generate", "a decode step takes", "measured here", kept.name):
        assert part in told.replace("\n", "")
    assert main(["plan", recipe]) == 0
    assert "measured here" in capsys.readouterr().out


def test_in_json(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pilot", recipe, "--steps", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["step"]["source"] == "measured here"
    assert found["pilot"]["place"]["device"]
    assert main(["plan", recipe, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["step"] == found["plan"]["step"]


def test_another_recipe_of_the_same_model_has_its_speeds_but_not_its_lengths(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pilot", recipe, "--steps", "1", "--json"]) == 0
    capsys.readouterr()
    longer = ["--set", "rollout.max_completion_tokens=8"]
    assert main(["plan", recipe, *longer, "--json"]) == 0
    assert "full budget" in json.loads(capsys.readouterr().out)["step"]["source"]


def test_what_cannot_be_piloted_is_said(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pilot", recipe, "--steps", "0"]) == 2
    assert "--steps 0" in capsys.readouterr().err
    assert main(["pilot", recipe, "--set", "rollout.engine=vllm"]) == 2
    assert "rollout.engine" in capsys.readouterr().err


def test_a_run_that_does_not_fit_is_not_rehearsed(
    recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("roost.run.prepare.available_bytes", lambda device: 2**20)
    assert main(["pilot", recipe, "--steps", "1"]) == 2
    assert "does not fit" in capsys.readouterr().err
