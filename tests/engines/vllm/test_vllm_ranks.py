"""vLLM beside the trainer in two processes: an engine each, or one that both hold."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tomli_w
from vllm_support import needs_vllm

from roost.config.loading import merge
from roost.run import checkpoint
from roost.run.metrics import read_metrics
from support.desk import SMALL_RUN
from support.ranks import difference, finish, rank_process, start, train, wait_for_step

pytestmark = [needs_vllm, pytest.mark.slow]

RECIPE: dict[str, Any] = merge(
    SMALL_RUN,
    {
        "model": {"path": "tiny", "device": "cpu", "dtype": "float32"},
        # Five prompts do not divide evenly.
        "data": {"prompts_per_step": 5},
        "rollout": {"engine": "vllm", "generations": 4},
        # With it the last bits of vLLM's numbers, which depend on company and shards, would be in
        # the gradient, and Adam makes a whole step of a gradient that is nothing but rounding.
        "correction": "off",
        "train": {"steps": 3, "learning_rate": 1e-3},
        "output": {"samples_every": 1},
    },
)
LORA: dict[str, Any] = {"train": {"method": "lora"}, "lora": {"rank": 4, "learning_rate": 1e-2}}
SHARDED = ("--set", "rollout.tensor_parallel=2")
FLIPPING = """
import os, sys
import torch
from roost.cli.main import main
from roost.engines.vllm.adapter import VllmAdapter

NAME = "model.layers.2.mlp.down_proj.weight"
honest = VllmAdapter.send

def send(port, tensors):
    if os.environ["RANK"] != "1":
        return honest(port, tensors)
    tensors = [(name, tensor.clone() if name == NAME else tensor) for name, tensor in tensors]
    for name, tensor in tensors:
        if name == NAME:
            # The last column, so in the last shard.
            tensor.view(torch.int32)[0, -1] ^= 1
    return honest(port, tensors)

VllmAdapter.send = send
sys.exit(main(sys.argv[1:]))
"""


def write(folder: Path, sections: Mapping[str, Any]) -> None:
    (folder / "run.toml").write_text(tomli_w.dumps(merge(RECIPE, sections)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same recipe by one process, by two with an engine each, and by two with one engine."""
    folder = tmp_path_factory.mktemp("full")
    write(folder, {})
    train(folder, 1, "run.toml", "--output", "one")
    train(folder, 2, "run.toml", "--output", "two")
    train(folder, 2, "run.toml", "--output", "sharded", *SHARDED)
    return {name: folder / name for name in ("one", "two", "sharded")}


def completions(run: Path, step: int) -> list[str]:
    rows = pq.read_table(run / f"samples/step-{step:06d}.parquet").to_pylist()
    return [row["completion"] for row in rows]


@pytest.mark.parametrize("kind", ["two", "sharded"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_two_processes_sample_what_one_samples(kind: str, step: int, runs: dict[str, Path]) -> None:
    """Token for token, in float32 on a CPU: each sample has a random stream of its own."""
    expected = completions(runs["one"], step)
    assert completions(runs[kind], step) == expected
    assert len(set(expected)) > 5


@pytest.mark.parametrize("kind", ["two", "sharded"])
def test_two_processes_train_what_one_trains(kind: str, runs: dict[str, Path]) -> None:
    """Sums are taken in another order, so to rounding; a step moves weights by 1e-3."""
    assert difference(runs["one"], runs[kind]) < 2e-5
    assert difference(runs["two"], runs["sharded"]) == 0.0, "the same samples, the same ranks"


def test_the_metrics_are_those_of_all_ranks(runs: dict[str, Path]) -> None:
    one, *others = (read_metrics(runs[kind] / "metrics.jsonl") for kind in runs)
    for rows in others:
        for row, expected in zip(rows, one, strict=True):
            assert row["sampling/logp_difference_max"] < 1e-4
            for name in ("reward", "tokens/generated", "loss", "grad_norm"):
                assert row[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name


def test_every_rank_proves_its_own_shard(runs: dict[str, Path]) -> None:
    for run in runs.values():
        _, *later = read_metrics(run / "metrics.jsonl")
        for row in later:
            assert row["sync/tensors_compared"] == 21
            assert row["sync/probe_difference"] < 1e-4


def test_an_adapter_travels_to_both_shards(tmp_path: Path) -> None:
    write(tmp_path, LORA)
    train(tmp_path, 2, "run.toml", *SHARDED)
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["sampling/logp_difference_max"] < 1e-4
        # Of the embedding, the head and 3 layers with 7 parts A and B, and 21 tensors of the base.
        assert row.get("sync/tensors_compared", 67) == 67


def test_a_bit_flipped_in_one_shard_ends_the_run_by_name(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "flipping.py").write_text(FLIPPING)
    code, error = finish(start(tmp_path, 2, "run.toml", *SHARDED, program=("flipping.py",)))
    assert code != 0
    assert "model.layers.2.mlp.down_proj.weight/1 is not what was sent" in error
    assert "rank 1 of 2 failed: the sync does not hold what was sent" in error
    assert not read_metrics(tmp_path / "run/metrics.jsonl")


def test_a_killed_shard_ends_the_run(tmp_path: Path) -> None:
    """The other one waits for it in the middle of a token."""
    write(tmp_path, {"train": {"steps": 400}})
    process = start(tmp_path, 2, "run.toml", *SHARDED)
    wait_for_step(process, tmp_path / "run/metrics.jsonl")
    killed = time.monotonic()
    rank_process(process, 1).kill()
    code, _ = finish(process)
    assert code != 0
    assert time.monotonic() - killed < 45


def test_a_signal_to_one_shard_stops_both_and_one_process_goes_on(tmp_path: Path) -> None:
    write(tmp_path, {"train": {"steps": 400}, "output": {"checkpoint_every": 0}})
    process = start(tmp_path, 2, "run.toml", *SHARDED)
    wait_for_step(process, tmp_path / "run/metrics.jsonl")
    rank_process(process, 1).send_signal(signal.SIGINT)
    code, error = finish(process)
    assert code == 0, error
    done = read_metrics(tmp_path / "run/metrics.jsonl")[-1]["step"]
    assert checkpoint.steps(tmp_path / "run/checkpoints") == [done]
    assert json.loads((tmp_path / "run/report.json").read_text())["finished"] is False
    more = ("--set", "rollout.tensor_parallel=1", "--set", f"train.steps={done + 1}")
    train(tmp_path, 1, "--resume", "run", *more)
    assert read_metrics(tmp_path / "run/metrics.jsonl")[-1]["step"] == done + 1
