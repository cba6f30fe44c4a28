"""Whole runs with ``rollout.engine = "vllm"``: one field is changed, everything else stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_support import needs_vllm

from roost.run.metrics import read_metrics
from support.tiny_runs import TinyRun, train_tiny

pytestmark = [needs_vllm, pytest.mark.slow]

METHODS: dict[str, dict[str, Any]] = {
    "full": {"train": {"steps": 3}},
    "lora": {"train": {"steps": 3, "method": "lora", "learning_rate": 1e-2}},
}


@pytest.fixture(scope="module", params=list(METHODS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    sections = METHODS[request.param] | {"rollout": {"engine": "vllm"}}
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return train_tiny(folder, Path.cwd(), sections)


def test_it_trains_and_evaluates(run: TinyRun) -> None:
    assert run.result.finished
    rows = read_metrics(run.folder.metrics)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["policy_version"] for row in rows] == [1, 2, 3]
    assert sum(line.startswith("held out, after step") for line in run.lines) == 2


def test_engine_and_trainer_agree_at_every_step(run: TinyRun) -> None:
    for row in read_metrics(run.folder.metrics):
        assert row["sampling/logp_difference_max"] < 1e-4
        assert 0.999 < row["sampling/importance_ratio_min"] <= row["sampling/importance_ratio_mean"]
        assert row["sampling/importance_ratio_mean"] <= row["sampling/importance_ratio_max"] < 1.001
        assert row["correction/truncated_ratio"] == row["correction/dropped_ratio"] == 0.0


def test_a_sync_is_measured(run: TinyRun) -> None:
    """Step 1 samples with what the evaluation before it was synced with; later ones sync anew."""
    first, *later = read_metrics(run.folder.metrics)
    assert "time/sync_s" not in first
    assert "sync/bytes" not in first
    for row in later:
        assert 0 < row["sync/send_s"] + row["sync/proof_s"] <= row["time/sync_s"]
        assert row["sync/bytes"] > 0
        assert row["sync/probe_difference"] < 1e-4
        assert row["memory/sync_peak_bytes"] > 0


def test_what_vllm_rounds_otherwise_is_corrected(tmp_path: Path) -> None:
    """In bfloat16 ratios are near 1, and a bound of 1.01 drops some tokens."""
    sections = {
        "model": {"dtype": "bfloat16"},
        "data": {"prompts_per_step": 16},
        "rollout": {"engine": "vllm", "generations": 8},
        "correction": {"mode": "mask", "max": 1.01},
        "eval": {"prompts": 0},
    }
    rows = read_metrics(train_tiny(tmp_path / "run", Path.cwd(), sections).folder.metrics)
    for row in rows:
        assert row["sampling/importance_ratio_mean"] == pytest.approx(1.0, abs=0.02)
        assert 0.7 < row["sampling/importance_ratio_min"] < 1 < row["sampling/importance_ratio_max"]
        assert 0 < row["correction/dropped_ratio"] < 0.5
        assert row["correction/truncated_ratio"] == 0.0
