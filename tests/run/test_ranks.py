"""Two processes under ``torchrun`` train what one trains, stop together and fail together."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tomli_w
from safetensors.torch import load_file

from roost.config.loading import merge
from roost.run import checkpoint
from roost.run.metrics import read_metrics
from support.desk import SMALL_RUN
from support.ranks import difference, finish, rank_process, start, train, wait_for_step

RECIPE: dict[str, Any] = merge(
    SMALL_RUN,
    {
        "model": {"path": "tiny", "device": "cpu", "dtype": "float32"},
        # Five prompts do not divide evenly.
        "data": {"prompts_per_step": 5},
        "rollout": {"generations": 4},
        "train": {"steps": 3},
        "output": {"samples_every": 1},
    },
)
DRIFTING = """
import os, sys
import torch
from roost.cli.main import main
from roost.training.trainer import Trainer

honest = Trainer.update

def update(trainer, groups):
    metrics = honest(trainer, groups)
    if os.environ["RANK"] == "1":
        # The smallest change there is, of one weight.
        flat = trainer.policy.trainable_parameters()["model.norm.weight"].data.view(torch.int32)
        flat[3] ^= 1
    return metrics

Trainer.update = update
sys.exit(main(sys.argv[1:]))
"""
FAILING = """
import os, sys
from roost.cli.main import main
from roost.run import loop

def broken(*_):
    raise RuntimeError("the disk of this rank is gone")

if os.environ["RANK"] == "1":
    loop.finish_scoring = broken
sys.exit(main(sys.argv[1:]))
"""


def write(folder: Path, sections: Mapping[str, Any]) -> None:
    (folder / "run.toml").write_text(tomli_w.dumps(merge(RECIPE, sections)))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of one process and one of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    write(folder, {})
    for ranks in (1, 2):
        train(folder, ranks, "run.toml", "--output", f"by-{ranks}")
    return folder / "by-1", folder / "by-2"


def test_two_ranks_sample_what_one_samples(both: tuple[Path, Path]) -> None:
    one, two = (pq.read_table(run / "samples" / "step-000001.parquet").to_pylist() for run in both)
    assert [row["completion"] for row in one] == [row["completion"] for row in two]
    assert len({row["completion"] for row in one}) > 5


def test_what_the_trainer_finds_of_each_token_comes_from_all_ranks(both: tuple[Path, Path]) -> None:
    one, two = (pq.read_table(run / "samples" / "step-000001.parquet").to_pylist() for run in both)
    computed = [(a, b) for a, b in zip(one, two, strict=True) if a["advantage"] != 0]
    assert len(computed) > 5
    for first, second in computed:
        assert second["trainer_logprobs"] == pytest.approx(first["trainer_logprobs"], abs=1e-5)
        assert first["trainer_logprobs"] == pytest.approx(first["full_logprobs"], abs=1e-5)


def test_two_ranks_train_what_one_trains(both: tuple[Path, Path]) -> None:
    assert difference(*both) < 1e-5
    start_weights = load_file(both[0] / "checkpoints/step-2/weights.safetensors")
    end = load_file(both[0] / "checkpoints/step-3/weights.safetensors")
    moved = max(float((end[name] - start_weights[name]).abs().max()) for name in end)
    assert moved > 2e-5  # so the bound above says something


def test_the_metrics_are_those_of_all_ranks(both: tuple[Path, Path]) -> None:
    for one, two in zip(*(read_metrics(run / "metrics.jsonl") for run in both), strict=True):
        assert one.keys() == two.keys()
        for name, value in one.items():
            if not name.startswith(("time/", "memory/", "step_time", "tokens/computed")):
                assert two[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(
    both: tuple[Path, Path], tmp_path: Path, first: int, then: int
) -> None:
    shutil.copytree(both[first - 1], tmp_path / "run")
    train(tmp_path, then, "--resume", "run", "--from-step", "2")
    assert [row["step"] for row in read_metrics(tmp_path / "run/metrics.jsonl")] == [1, 2, 3]
    assert difference(both[0], tmp_path / "run") < 1e-5


def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    write(tmp_path, {"train": {"steps": 400}, "output": {"checkpoint_every": 0}})
    process = start(tmp_path, 2, "run.toml")
    wait_for_step(process, tmp_path / "run/metrics.jsonl")
    rank_process(process, 1).send_signal(signal.SIGINT)
    code, error = finish(process)
    assert code == 0, error
    steps = [row["step"] for row in read_metrics(tmp_path / "run/metrics.jsonl")]
    assert checkpoint.steps(tmp_path / "run/checkpoints") == [steps[-1]]
    assert json.loads((tmp_path / "run/report.json").read_text())["finished"] is False


def test_an_error_on_one_rank_ends_all_and_names_it(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "failing.py").write_text(FAILING)
    code, error = finish(start(tmp_path, 2, "run.toml", program=("failing.py",)))
    assert code != 0
    assert "rank 1 of 2 failed: RuntimeError('the disk of this rank is gone')" in error


def test_a_killed_rank_ends_the_run(tmp_path: Path) -> None:
    write(tmp_path, {"train": {"steps": 400}})
    process = start(tmp_path, 2, "run.toml")
    wait_for_step(process, tmp_path / "run/metrics.jsonl")
    killed = time.monotonic()
    rank_process(process, 1).kill()
    code, _ = finish(process)
    assert code != 0
    assert time.monotonic() - killed < 45


def test_ranks_that_come_to_hold_other_weights_are_told(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "drifting.py").write_text(DRIFTING)
    code, error = finish(start(tmp_path, 2, "run.toml", program=("drifting.py",)))
    assert code != 0
    assert "after step 1, rank 1 holds other weights than rank 0: model.norm.weight and 0 more" in (
        error
    )


def test_servers_in_several_processes_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"rollout": {"engine": "vllm", "mode": "server", "launch": True}})
    code, error = finish(start(tmp_path, 2, "run.toml"))
    assert code != 0
    assert "rollout.mode = 'server' in 2 processes" in error
    assert not (tmp_path / "run").exists()
