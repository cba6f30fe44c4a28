"""How a run ended: against its metrics file, and in a person's and a program's words."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from roost.run.folder import RunFolder
from roost.run.ledger import PhaseRecord
from roost.run.report import RunResult, conclude
from roost.run.session import Session
from roost.training.parallel import Ranks
from support.tiny_runs import TinyRun

HELD_OUT = {
    "0": {"reward": 0.25, "pass_at_1": 0.2, "prompts": 64},
    "50": {"reward": 0.4, "pass_at_1": 0.3, "prompts": 64},
    "100": {"reward": 0.75, "pass_at_1": 0.7, "prompts": 64},
}
RESULT = RunResult(Path("runs/a"), True, 100, 0.3, 0.8, HELD_OUT)


def ended(folder: Path, rewards: list[float | None]) -> RunResult:
    """The report of a run with these mean rewards."""
    lines = [json.dumps({"step": i + 1, "reward": r}) for i, r in enumerate(rewards)]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    step = SimpleNamespace(generate_s=1.5, train_s=0.5)
    phases = [SimpleNamespace(name="generate", bytes=100), SimpleNamespace(name="train", bytes=200)]
    session = SimpleNamespace(
        folder=RunFolder(folder),
        step=len(rewards),
        evaluations={},
        ranks=Ranks(),
        prepared=SimpleNamespace(plan=SimpleNamespace(phases=phases, step=step)),
        ledger=SimpleNamespace(
            phases={"train": PhaseRecord(150, 2.5, 4), "reward": PhaseRecord(9, 0.5, 4)}
        ),
    )
    return conclude(cast(Session, session), finished=True)


@pytest.mark.parametrize(
    ("rewards", "first", "last"),
    [
        pytest.param([i / 100 for i in range(40)], 0.015, 0.375, id="tenths-of-forty"),
        pytest.param([0.5, 0.1, 0.9], 0.5, 0.9, id="one-step-of-three"),
        pytest.param([None, 0.25, 0.5, None], 0.25, 0.5, id="steps-without-a-reward"),
    ],
)
def test_first_and_last_tenth(
    tmp_path: Path, rewards: list[float | None], first: float, last: float
) -> None:
    result = ended(tmp_path, rewards)
    assert (result.reward_first, result.reward_last) == pytest.approx((first, last))
    written = json.loads((tmp_path / "report.json").read_text())
    assert (written["reward_first"], written["reward_last"]) == pytest.approx((first, last))


def test_a_run_without_a_step_has_no_reward(tmp_path: Path) -> None:
    result = ended(tmp_path, [])
    assert math.isnan(result.reward_first)
    assert json.loads((tmp_path / "report.json").read_text())["reward_first"] is None
    assert not any("training reward" in line for line in result.lines())


def test_the_ledger_sets_plan_beside_measurement(tmp_path: Path) -> None:
    ended(tmp_path, [0.5])
    train, reward = json.loads((tmp_path / "ledger.json").read_text())
    assert train == {
        "phase": "train",
        "planned_bytes": 200,
        "planned_seconds": 2.0,
        "measured_bytes": 150,
        "seconds": 2.5,
        "times": 4,
    }
    assert (reward["phase"], reward["planned_bytes"]) == ("reward", None), "it is not planned for"


def test_a_finished_run_in_a_persons_words() -> None:
    assert RESULT.lines() == [
        "training reward 0.300 -> 0.800 over 100 steps",
        "held-out reward 0.250 -> 0.750, pass@1 0.200 -> 0.700 on 64 prompts never trained on",
        "run folder: runs/a",
        "trained model: runs/a/final",
    ]


def test_a_stopped_run_says_how_to_go_on() -> None:
    stopped = replace(RESULT, finished=False, held_out={"0": HELD_OUT["0"]})
    assert stopped.lines() == [
        "training reward 0.300 -> 0.800 over 100 steps",
        "run folder: runs/a",
        "stopped; go on with: roost train --resume runs/a",
    ]


def test_a_held_out_result_without_a_score() -> None:
    """JSON has no NaN, so the reward of prompts that nothing scored is None."""
    held_out: dict[str, dict[str, Any]] = {**HELD_OUT, "100": {**HELD_OUT["100"], "reward": None}}
    assert "held-out reward 0.250 -> none" in replace(RESULT, held_out=held_out).lines()[1]


def test_the_report_of_a_real_run(full_run: TinyRun) -> None:
    folder = full_run.folder
    rewards = [json.loads(line)["reward"] for line in folder.metrics.read_text().splitlines()]
    report = json.loads(folder.report.read_text())
    assert report == full_run.result.as_dict()
    assert report["folder"] == str(folder.root)
    assert (report["finished"], report["steps"]) == (True, 2)
    assert (report["reward_first"], report["reward_last"]) == (rewards[0], rewards[1])
    assert set(report["held_out"]) == {"0", "2"}


def test_the_ledger_of_a_real_run(full_run: TinyRun) -> None:
    metrics = [json.loads(line) for line in full_run.folder.metrics.read_text().splitlines()]
    ledger = {row["phase"]: row for row in json.loads(full_run.folder.ledger.read_text())}
    assert set(ledger) == {"evaluate", "generate", "reward", "train"}
    assert all(row["times"] == 2 for row in ledger.values())
    # Evaluations are between the steps, in no step's metrics.
    for phase in ("generate", "reward", "train"):
        row = ledger[phase]
        assert row["seconds"] == pytest.approx(sum(m[f"time/{phase}_s"] for m in metrics))
        assert row["measured_bytes"] == max(m[f"memory/{phase}_peak_bytes"] for m in metrics)
    assert all(ledger[phase]["planned_bytes"] > 0 for phase in ("generate", "train"))
