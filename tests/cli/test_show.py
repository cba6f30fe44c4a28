"""``roost show`` of runs in every state that a folder can be left in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from roost.run.lock import FolderLock
from support.commands import run, succeed
from support.desk import Desk
from support.tiny_runs import TinyRun


def killed(folder: str, *, checkpoint: bool = True) -> str:
    """As SIGKILL leaves a run: after its checkpoint and before its report, or before both."""
    root = Path(folder)
    for name in ("report.json", "ledger.json"):
        (root / name).unlink()
    shutil.rmtree(root / "final")
    if not checkpoint:
        shutil.rmtree(root / "checkpoints/step-2")
        (root / "metrics.jsonl").write_text(metric_lines(root)[0] + '\n{"step": 2, "rew')
    return folder


def metric_lines(root: Path) -> list[str]:
    return (root / "metrics.jsonl").read_text().splitlines()


def test_a_finished_run(desk: Desk, full_run: TinyRun) -> None:
    state = succeed("show", desk.run(), "--json").json
    report = json.loads(full_run.folder.report.read_text())
    assert state == {
        "status": "finished",
        "step": 2,
        "steps": 2,
        "policy_version": 2,
        "checkpoints": [2],
        "held_out": report["held_out"],
        "metrics": [json.loads(line) for line in metric_lines(full_run.folder.root)],
    }


def test_a_finished_run_for_a_person(desk: Desk, full_run: TinyRun) -> None:
    said = succeed("show", desk.run()).output
    assert said.startswith("run: finished, step 2 of 2, policy version 2\n")
    assert "checkpoints after steps 2\n" in said
    for step, result in full_run.result.held_out.items():
        assert f"held out after step {step}: reward {result['reward']:.3f}" in said
    first, last = (json.loads(line)["reward"] for line in metric_lines(full_run.folder.root))
    assert f"\nreward  {first:.4g} -> {last:.4g}\n" in said


def test_the_samples_of_the_last_step(desk: Desk) -> None:
    folder = desk.run()
    [path] = Path(folder, "samples").glob("*2.parquet")
    rows = pq.read_table(path).to_pylist()
    assert len(rows) == 16
    said = succeed("show", folder, "--samples", "5").output
    assert said.count("\nstep 2, ") == 5
    for row in rows[:5]:
        block = f"step 2, reward {row['reward']:.3f}, {row['finish_reason']}\n{row['prompt']}\n"
        assert f"{block}{row['completion']}\n" in said
    assert "step 2, reward" not in succeed("show", folder, "--samples", "0").output


def test_samples_are_shown_letter_for_letter(desk: Desk) -> None:
    """What a model says is no markup, no emoji code, and is not cut into lines."""
    folder = desk.run()
    [path] = Path(folder, "samples").glob("*2.parquet")
    said_by_model = ["[bold]x[/] [/nothing] :smile:", "ends in \\", "word " * 60]
    table = pq.read_table(path)
    rows = [{**row, "reward": None} for row in table.to_pylist()[:3]]
    for row, text in zip(rows, said_by_model, strict=True):
        row["completion"] = row["prompt"] = text
    pq.write_table(table.from_pylist(rows, schema=table.schema), path)
    said = succeed("show", folder).output
    for row, text in zip(rows, said_by_model, strict=True):
        assert f", unscored, {row['finish_reason']}\n{text}\n{text}\n" in said


def test_one_metric(desk: Desk) -> None:
    said = succeed("show", desk.run(), "--metric", "grad_norm", "--samples", "0").output
    assert "\ngrad_norm  " in said
    assert "\nreward  " not in said


def test_a_killed_run_says_how_to_go_on(desk: Desk, full_run: TinyRun) -> None:
    folder = killed(desk.run("a-name-that-with-others-fills-a-line-of-a-terminal-of-80-columns"))
    state = succeed("show", folder, "--json").json
    assert state["status"] == f"stopped; go on with: roost train --resume {folder}"
    assert (state["step"], state["checkpoints"]) == (2, [2])
    assert state["held_out"] == full_run.result.held_out
    assert f"roost train --resume {folder}, step 2 of 2" in succeed("show", folder).output


def test_a_run_killed_before_its_first_checkpoint(desk: Desk) -> None:
    folder = killed(desk.run(), checkpoint=False)
    state = succeed("show", folder, "--json").json
    assert state["status"].startswith("stopped; ")
    assert (state["step"], state["checkpoints"], state["held_out"]) == (1, [], {})
    said = succeed("show", folder).output
    assert "step 1 of 2, policy version 1\ncheckpoints after steps none\n" in said


def test_a_run_killed_before_its_first_step(desk: Desk) -> None:
    folder = Path(killed(desk.run(), checkpoint=False))
    (folder / "metrics.jsonl").unlink()
    for path in (folder / "samples").iterdir():
        path.unlink()
    said = succeed("show", folder).output
    assert said.splitlines() == [
        "run: stopped; go on with: roost train --resume run, step 0 of 2, policy version 0",
        "checkpoints after steps none",
    ]
    assert succeed("show", folder, "--json").json["metrics"] == []


def test_a_run_made_longer_and_killed_is_not_finished(desk: Desk) -> None:
    """Its report is of the time before."""
    folder = Path(desk.run())
    config = (folder / "config.toml").read_text()
    assert "steps = 2\n" in config
    (folder / "config.toml").write_text(config.replace("steps = 2\n", "steps = 5\n"))
    state = succeed("show", folder, "--json").json
    assert state["status"].startswith("stopped; ")
    assert (state["step"], state["steps"]) == (2, 5)


def test_a_live_run(desk: Desk) -> None:
    folder = killed(desk.run())
    with FolderLock(Path(folder)):
        assert succeed("show", folder, "--json").json["status"] == "running"


@pytest.mark.parametrize("damage", ["{", "[]"])
def test_a_damaged_checkpoint_does_not_hide_the_run(desk: Desk, damage: str) -> None:
    folder = desk.run()
    (Path(folder) / "checkpoints/step-2/state.json").write_text(damage)
    state: Any = succeed("show", folder, "--json").json
    assert (state["status"], state["step"]) == ("finished", 2)


def test_no_samples_less_than_none(desk: Desk) -> None:
    said = run("show", desk.run(), "--samples", "-1")
    assert said.code == 2
    assert "--samples" in said.error
    assert "-1" in said.error
