"""Law 8: every wait on another process has a deadline, and a bad sample costs only itself."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import roost
from roost.errors import RewardError

REWARDS = '''
import os
import time


def moody(completions, prompts):
    """Hangs, dies, raises or lies by the prompt's first digit; else answers 1 or 0."""
    kind = prompts[0].lstrip()[0]
    if kind == "1":
        time.sleep(3600)
    if kind == "2":
        os._exit(3)
    if kind == "3":
        raise RuntimeError("no mood")
    if kind == "4":
        return [float("nan")] * len(completions)
    if kind == "5":
        return []
    return [float(len(text) % 2) for text in completions]


def never(completions):
    time.sleep(3600)
'''


def settings(folder: Path, function: str) -> dict[str, object]:
    (folder / "rewards.py").write_text(REWARDS)
    return {
        "rewards": {
            "functions": [f"{folder}/rewards.py:{function}"],
            "deadline_s": 1.0,
            "workers": 2,
        },
        "rollout": {"generations": 2, "max_completion_tokens": 6},
        "train": {"steps": 2, "learning_rate": 1e-4},
        "eval": {"prompts": 0},
        "output": {"folder": str(folder / "run")},
        "quiet": True,
    }


def test_bad_rewards_cost_their_samples_only(tmp_path: Path) -> None:
    data = [{"prompt": f"{digit}+1="} for digit in range(1, 10)]
    roost.train(data=data, **settings(tmp_path, "moody"))  # type: ignore[arg-type]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 2
    # Each step takes 8 of the 9 prompts, so at least 4 of the 5 bad ones.
    for row in rows:
        assert row["rewards/unscored"] in (8, 10)
        assert 0.0 <= row["reward"] <= 1.0


def test_a_run_whose_rewards_all_hang_stops_and_says_who(tmp_path: Path) -> None:
    data = [{"prompt": f"1+{n}="} for n in range(8)]
    start = time.monotonic()
    with pytest.raises(RewardError, match=r"none of the \d+ samples.*no answer within 1 s; its wo"):
        roost.train(data=data, **settings(tmp_path, "never"))  # type: ignore[arg-type]
    assert time.monotonic() - start < 60
