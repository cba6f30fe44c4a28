"""``roost train``: what it prints, what it writes, and how it goes on."""

from __future__ import annotations

import errno
import json
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from roost.config.loading import quickstart_path
from roost.run import prepare, samples_file
from support.commands import Said, run, succeed
from support.desk import Desk


def rows(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@dataclass(frozen=True)
class Trained:
    """One step trained with ``--json``, then a second one by ``--resume`` for a person."""

    run: Path
    recipe: Any
    first: Said
    first_rows: list[Any]
    second: Said


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        desk = Desk(root, patch, root)
        recipe = desk.recipe({"output": {"checkpoint_every": 0}})
        first = run("train", recipe, "--set", "train.steps=1", "--output", "out", "--json")
        first_rows = rows(root / "out")
        second = run("train", "--resume", "out", "--set", "train.steps=2")
        written = tomllib.loads((root / recipe).read_text())
        yield Trained(root / "out", written, first, first_rows, second)


def test_json_is_all_that_a_program_reads(trained: Trained) -> None:
    assert trained.first.code == 0
    assert trained.first.error == ""
    result = trained.first.json
    [row] = trained.first_rows
    assert result == {
        "folder": "out",
        "finished": True,
        "steps": 1,
        "reward_first": row["reward"],
        "reward_last": row["reward"],
        "held_out": result["held_out"],
    }
    assert list(result["held_out"]) == ["0", "1"]
    assert {r["prompts"] for r in result["held_out"].values()} == {2}
    assert all(0 <= r["pass_at_1"] <= 1 for r in result["held_out"].values())


def test_output_and_set_go_over_the_recipe(trained: Trained) -> None:
    assert trained.recipe["output"]["folder"] == "run"
    assert trained.recipe["train"]["steps"] == 2
    assert not (trained.run.parent / "run").exists()
    assert [row["step"] for row in trained.first_rows] == [1]
    resolved = tomllib.loads((trained.run / "config.toml").read_text())
    assert resolved["output"]["folder"] == "out"
    assert resolved["rollout"]["generations"] == trained.recipe["rollout"]["generations"]
    assert resolved["data"]["prompts_per_step"] == trained.recipe["data"]["prompts_per_step"]


def test_a_resumed_run_goes_on_after_its_last_step(trained: Trained) -> None:
    assert trained.second.code == 0, trained.second.error
    assert [row["step"] for row in rows(trained.run)] == [1, 2]
    assert rows(trained.run)[0] == trained.first_rows[0]


def test_what_a_person_reads(trained: Trained) -> None:
    """On standard error what will run and the memory it needs, on standard output how it ended."""
    for said in ("model   tiny", "rewards numeric", "plan    ", "resuming after step 1"):
        assert said in trained.second.error
    assert "held out, after step 2" in trained.second.error
    first, last = (row["reward"] for row in rows(trained.run))
    assert f"training reward {first:.3f} -> {last:.3f} over 2 steps" in trained.second.output
    assert "on 2 prompts never trained on" in trained.second.output
    assert f"trained model: {Path('out/final')}" in trained.second.output


def test_a_longer_run_says_so_in_its_own_configuration(trained: Trained) -> None:
    """Else its next resume would look for the old last step, which is behind it, for ever."""
    assert tomllib.loads((trained.run / "config.toml").read_text())["train"]["steps"] == 2


def test_the_final_model_loads(trained: Trained) -> None:
    AutoModelForCausalLM.from_pretrained(trained.run / "final")
    assert AutoTokenizer.from_pretrained(trained.run / "final").chat_template


def test_a_run_cannot_end_before_where_it_is(desk: Desk) -> None:
    said = run("train", "--resume", desk.run(), "--set", "train.steps=1", "--dry-run")
    assert said.code == 2
    assert "train.steps = 1: the run has done 2 steps already" in said.error
    assert "--from-step" in said.error


@pytest.mark.parametrize("arguments", [["recipe.toml"], ["--resume", "run"]])
def test_a_dry_run_prints_the_plan_and_writes_nothing(desk: Desk, arguments: list[str]) -> None:
    desk.run()
    desk.recipe({"output": {"folder": "new"}})
    before = {name: (desk.root / name).stat().st_mtime_ns for name in desk.files()}
    said = succeed("train", *arguments, "--dry-run")
    assert {name: (desk.root / name).stat().st_mtime_ns for name in desk.files()} == before
    assert said.output == "dry run: everything is in order, nothing was loaded or written\n"
    plan = [line for line in said.error.splitlines() if line.startswith("plan ")]
    assert any("generate" in line for line in plan)
    assert any("train" in line for line in plan)


def test_a_dry_run_for_programs(desk: Desk) -> None:
    recipe = desk.recipe({"data": {"options": {"size": 30}}, "eval": {"prompts": 4}})
    said = succeed("train", recipe, "--set", "seed=7", "--dry-run", "--json")
    assert said.error == ""
    plan = said.json
    assert plan["config"]["seed"] == 7
    assert (plan["prompts"], plan["held_out"]) == (26, 4)
    assert plan["plan"]


@pytest.mark.parametrize("overlong", ["drop", "truncate"])
def test_what_is_left_out_is_said_to_programs_too_and_kept(desk: Desk, overlong: str) -> None:
    rows = [*desk.problems(12), {"prompt": "1+" * 40 + "1=", "answer": 41}]
    data = {"source": desk.rows(rows), "max_prompt_tokens": 20, "overlong": overlong}
    recipe = desk.recipe({"data": data, "train": {"steps": 1}})
    what = "left out: longer than" if overlong == "drop" else "cut to their last"
    warning = f"warning: data    1 {what} 20 tokens\n"

    planned = succeed("train", recipe, "--dry-run", "--json")
    assert planned.error == warning
    said = succeed("train", recipe, "--json")
    assert said.error == warning
    assert said.json["finished"] is True
    assert f"1 {what} 20 tokens" in succeed("train", recipe, "--output", "other").error

    kept = json.loads((desk.root / "run/data.json").read_text())
    assert kept == planned.json["data"]
    assert (kept["dropped"], kept["truncated"]) == ((1, 0) if overlong == "drop" else (0, 1))
    assert kept["train"] + kept["held_out"] + kept["dropped"] == 13


def test_without_a_recipe_it_is_the_quickstart(desk: Desk) -> None:
    said = succeed("train", "--dry-run")
    assert "no recipe given: running the quickstart" in said.error
    config = succeed("train", "--dry-run", "--json").json["config"]
    recipe = tomllib.loads(quickstart_path().read_text())
    assert config["model"]["path"] == recipe["model"]
    assert config["train"]["steps"] == recipe["train"]["steps"]
    assert config["rollout"]["generations"] == recipe["rollout"]["generations"]
    assert config["eval"]["prompts"] == recipe["eval"]["prompts"]


def test_a_recipe_finds_the_files_beside_it(desk: Desk) -> None:
    desk.write("recipes/mine.py", "def own(completions):\n    return [0.0 for _ in completions]\n")
    desk.rows(desk.problems(9), "recipes/data.jsonl")
    recipe = desk.recipe({"data": "data.jsonl", "rewards": ["mine.py:own"]}, "recipes/r.toml")
    said = succeed("train", recipe, "--dry-run")
    assert "rewards own" in said.error


def test_force_starts_what_the_plan_refuses(desk: Desk) -> None:
    # Less than there is, on paper.
    desk.patch.setattr(prepare, "available_bytes", lambda device: 2**20)
    refused = desk.train(train={"steps": 1})
    said = run(*refused)
    assert said.code == 2
    assert "the run does not fit" in said.error
    assert not (desk.root / "run").exists()
    assert succeed(*refused, "--force").json["finished"] is True


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", ["metrics.MetricsLog.append", "samples_file.write"])
def test_a_disk_that_fills_up_is_one_error(desk: Desk, place: str) -> None:
    desk.patch.setattr(f"roost.run.{place}", full)
    said = run(*desk.train())
    assert said.code == 2
    assert "'run' cannot be written any more: No space left on device" in said.error
    assert "roost train --resume run" in said.error


def test_a_folder_removed_from_under_a_run_is_one_error(desk: Desk) -> None:
    write = samples_file.write

    def removed(folder: Path, *rest: Any) -> Path:
        shutil.rmtree(folder.parent)
        return write(folder, *rest)

    desk.patch.setattr("roost.run.samples_file.write", removed)
    said = run(*desk.train())
    assert said.code == 2
    assert "cannot be written" in said.error
    assert "No such file or directory" in said.error
