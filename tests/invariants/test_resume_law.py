"""Law 7: N steps, a kill, and the rest equal an uninterrupted run, bit for bit on a CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from roost.run import checkpoint, samples_file
from roost.run.metrics import read_metrics
from support import killed_run

STEPS = 4
NOT_COMPARED = ("time/", "memory/", "step_time")
"""Metrics that no two runs share."""

KILLS = [
    ("held-out", 1),
    ("sampling", 3),
    ("sampling", 37),
    ("rewards", 3),
    ("training", 3),
    ("writing a checkpoint", 2),
    ("training", 4),
    ("held-out", 3),
]
CALLS = [
    # In the middle of the third checkpoint: tensors written, state not; whole, not in its place.
    ("roost.run.checkpoint.write_json", 5),
    ("roost.run.checkpoint._replace", 3),
    # A checkpoint that is no longer kept is half removed.
    ("roost.run.checkpoint._remove", 1),
    # In the middle of a row of metrics, of the final model, and after all else.
    ("json.dumps", 3),
    ("transformers.PreTrainedTokenizerBase.save_pretrained", 1),
    ("roost.run.launch.conclude", 1),
]
"""Functions of which some call is the run's last."""


def configuration(method: str) -> dict[str, Any]:
    return {
        "seed": 7,
        "model": {"path": "tiny"},
        "data": {"source": "arithmetic", "prompts_per_step": 3},
        "rollout": {"generations": 4, "max_completion_tokens": 12},
        "rewards": ["numeric"],
        "loss": {"beta": 0.01},
        "train": {
            "method": method,
            "steps": STEPS,
            "learning_rate": 1e-3,
            "num_iterations": 2,
            "warmup_steps": 2,
        },
        "lora": {"rank": 4},
        "eval": {"prompts": 4, "every": 2},
        "output": {"checkpoint_every": 1},
    }


def launch(folder: Path, method: str, phase: str = "", count: int = 0) -> int:
    command = [sys.executable, killed_run.__file__, str(folder), phase, str(count)]
    done = subprocess.run(
        [*command, json.dumps(configuration(method))],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def comparable_metrics(folder: Path) -> list[dict[str, Any]]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith(NOT_COMPARED)} for row in rows]


def assert_same_run(one: Path, other: Path) -> None:
    assert comparable_metrics(one) == comparable_metrics(other)
    last, again = (checkpoint.load(folder / "checkpoints") for folder in (one, other))
    assert last.step == again.step == STEPS
    assert last.state == again.state
    for mine, theirs in ((last.weights, again.weights), (last.optimizer, again.optimizer)):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for file in (one / "final").glob("*.safetensors"):
        mine, theirs = load_file(file), load_file(other / "final" / file.name)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for file in sorted((one / "samples").iterdir()):
        assert samples_file.read(file) == samples_file.read(other / "samples" / file.name)


@pytest.fixture(scope="module", params=["full", "lora"])
def whole(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("whole") / request.param
    assert launch(folder, request.param) == 0
    return request.param, folder


@pytest.mark.slow
def test_two_whole_runs_are_equal(whole: tuple[str, Path], tmp_path: Path) -> None:
    method, folder = whole
    assert launch(tmp_path / "again", method) == 0
    assert_same_run(folder, tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "count"), KILLS)
def test_killed_and_resumed_equals_whole(
    whole: tuple[str, Path], tmp_path: Path, phase: str, count: int
) -> None:
    method, folder = whole
    killed = tmp_path / "killed"
    assert launch(killed, method, phase, count) == -signal.SIGKILL
    assert launch(killed, method) == 0
    assert_same_run(folder, killed)


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["full"], indirect=True)
@pytest.mark.parametrize(("name", "count"), CALLS)
def test_killed_within_what_is_written_equals_whole(
    whole: tuple[str, Path], tmp_path: Path, name: str, count: int
) -> None:
    method, folder = whole
    killed = tmp_path / "killed"
    assert launch(killed, method, f"call {name}", count) == -signal.SIGKILL
    assert launch(killed, method) == 0
    assert_same_run(folder, killed)


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["lora"], indirect=True)
@pytest.mark.parametrize("name", ["settle", "restore_weights", "_replace"])
def test_killed_while_resuming_equals_whole(
    whole: tuple[str, Path], tmp_path: Path, name: str
) -> None:
    method, folder = whole
    killed = tmp_path / "killed"
    assert launch(killed, method, "training", 3) == -signal.SIGKILL
    assert launch(killed, method, f"call roost.run.checkpoint.{name}", 1) == -signal.SIGKILL
    assert launch(killed, method) == 0
    assert_same_run(folder, killed)


@pytest.mark.slow
def test_killed_at_every_turn(whole: tuple[str, Path], tmp_path: Path) -> None:
    method, folder = whole
    killed = tmp_path / "killed"
    for phase, count in (("sampling", 20), ("rewards", 1), ("training", 1), ("training", 2)):
        assert launch(killed, method, phase, count) == -signal.SIGKILL
    assert launch(killed, method) == 0
    assert_same_run(folder, killed)
