"""Runs in processes that may be killed, and what must be equal at their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from roost.run import checkpoint, samples_file
from roost.run.metrics import read_metrics
from support import killed_run

STEPS = 4
NOT_COMPARED = ("time/", "memory/", "step_time")
"""Metrics that no two runs share."""


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


def launch(folder: Path, method: str, phase: str = "", count: float = 0) -> int:
    """Start a run, or go on with it; returns its exit code. ``support.killed_run`` says when it
    is killed."""
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
