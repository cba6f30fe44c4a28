"""Sampling one batch ahead of training: what overlaps, what is kept, and what is refused."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from safetensors.torch import load_file

from roost.config.loading import build_config, merge
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.port import Finished
from roost.errors import CheckpointError, EngineError
from roost.rewards.pool import Failure, Scored
from roost.run.agreement import check_versions
from roost.run.batches import Batch
from roost.run.display import QuietDisplay
from roost.run.folder import RunFolder
from roost.run.interrupts import StopSwitch
from roost.run.launch import PythonObjects, resume_run, start_run
from roost.samples import FinishReason, Group, Prompt, Sample, TokenSource
from roost.training.trainer import Trainer
from support.copied_port import CopiedPort
from support.tiny_runs import SECTIONS

STEPS = 5
AHEAD: dict[str, Any] = {
    "rollout": {"engine": "vllm", "mode": "server", "launch": True, "staleness": 1},
    "train": {"steps": STEPS, "updates_per_batch": 2},
    "eval": {"prompts": 4, "every": 2},
    "output": {"checkpoint_every": 1, "keep_checkpoints": 9, "samples_every": 1},
}
TIMES = ("time/", "memory/", "step_time", "sync/")
"""What differs from run to run; a resumed run's first sync compares everything."""


class Stage:
    """Runs whose server is a copy of the model in this process."""

    def __init__(self) -> None:
        self.port: Callable[[Any], CopiedPort] = CopiedPort

    def build(self, prepared: Any, policy: Any, ranks: Any, *through: Any) -> VllmEngine:
        probe = list(prepared.prompts.train[0].token_ids)
        port = self.port(policy)
        return VllmEngine(policy, prepared.tokenizer, port, probe=probe, cache_bytes=1)

    def train(self, folder: Path, sections: dict[str, Any] | None = None) -> RunFolder:
        mapping = merge(merge(SECTIONS, AHEAD), sections or {})
        config = build_config(merge(mapping, {"output": {"folder": str(folder)}}))
        start_run(config, Path.cwd(), QuietDisplay(), objects=PythonObjects())
        return RunFolder(folder)

    def resume(self, folder: RunFolder, from_step: int | None = None) -> None:
        resume_run(folder.root, QuietDisplay(), objects=PythonObjects(), from_step=from_step)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr("roost.run.session.build_engine", made.build)
    monkeypatch.setattr("roost.run.engines.check_version", lambda version: None)
    return made


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in found]


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder.final / "model.safetensors")


def assert_same_end(one: RunFolder, other: RunFolder) -> None:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert rows(one) == rows(other)


def test_each_batch_comes_from_the_weights_before_the_last_update(
    stage: Stage, tmp_path: Path
) -> None:
    folder = stage.train(tmp_path / "run")
    assert [row["sampling/version_lag_max"] for row in rows(folder)] == [0, 2, 2, 2, 2]
    for step in range(1, STEPS + 1):
        table = parquet.read_table(folder.samples / f"step-{step:06d}.parquet")
        versions = set(table.column("policy_version").to_pylist())
        assert versions == {2 * max(0, step - 2)}
    # The first batch and the one before it come from the same weights, with other draws.
    assert all("time/ahead_s" in json.loads(line) for line in _lines(folder)[1:])
    assert "time/ahead_s" not in json.loads(_lines(folder)[0])


def _lines(folder: RunFolder) -> list[str]:
    return folder.metrics.read_text().splitlines()


class MeetingPort(CopiedPort):
    """Finishes no sample of the second batch before an update has begun."""

    begun = threading.Event()

    def step(self) -> list[Finished]:
        if self.label == "0" and self._count > 16 + 4:
            assert self.begun.wait(60), "no update has begun while it was sampling"
        return super().step()


def test_it_samples_while_the_trainer_trains(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.port = MeetingPort
    update = Trainer.update

    def begin(self: Trainer, groups: Any) -> dict[str, float]:
        MeetingPort.begun.set()
        return update(self, groups)

    monkeypatch.setattr(Trainer, "update", begin)
    stage.train(tmp_path / "run", {"train": {"steps": 2}})
    assert MeetingPort.begun.is_set()


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_resume_from_a_checkpoint_equals_the_whole(
    stage: Stage, tmp_path: Path, step: int
) -> None:
    whole = stage.train(tmp_path / "whole")
    shutil.copytree(whole.root, tmp_path / "again")
    again = RunFolder(tmp_path / "again")
    stage.resume(again, from_step=step)
    assert_same_end(whole, again)


@pytest.mark.parametrize("checks", [3, 20, 22, 25, 29])
def test_a_stop_anywhere_loses_nothing(
    stage: Stage, tmp_path: Path, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it comes while the first batch is sampled, or an evaluation, or a batch ahead."""
    whole = stage.train(tmp_path / "whole")
    left = iter(range(checks))

    class Stopping(StopSwitch):
        def check(self) -> None:
            if threading.current_thread() is threading.main_thread() and next(left, None) is None:
                self.ask()
            super().check()

    with monkeypatch.context() as patch:
        patch.setattr("roost.run.launch.StopSwitch", Stopping)
        stopped = stage.train(tmp_path / "stopped")
    assert not stopped.final.exists()
    stage.resume(stopped)
    assert_same_end(whole, stopped)


class BrokenPort(CopiedPort):
    """Fails with the third batch."""

    def step(self) -> list[Finished]:
        if self.label == "2":
            raise EngineError("the cable is out")
        return super().step()


def test_what_fails_ahead_fails_the_run(stage: Stage, tmp_path: Path) -> None:
    stage.port = BrokenPort
    before = set(threading.enumerate())
    with pytest.raises(EngineError, match="the cable is out"):
        stage.train(tmp_path / "run", {"eval": {"every": 0}})
    assert set(threading.enumerate()) <= before


def test_what_is_not_wanted_any_more_ends_with_the_run(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Trainer, groups: Any) -> dict[str, float]:
        raise EngineError("the update failed")

    before = set(threading.enumerate())
    monkeypatch.setattr(Trainer, "update", fail)
    with pytest.raises(EngineError, match="the update failed"):
        stage.train(tmp_path / "run")
    assert set(threading.enumerate()) <= before


def make_sample(version: int) -> Sample:
    return Sample(
        prompt_id=7,
        index=1,
        token_ids=[5, 6],
        logprobs=[-0.1, -1 / 3],
        kept_mass_logs=[0.0, 0.0],
        finish_reason=FinishReason.STOP,
        policy_versions=[version, version + 1],
        sources=[TokenSource.MODEL, TokenSource.TOOL],
        text='a "b"\n\u00e9',
        rewards={"digits": None, "numeric": 0.1},
        reward=0.1,
        advantage=0.0,
    )


def test_a_batch_travels_through_json_unchanged() -> None:
    prompt = Prompt(7, (1, 2), "p")
    failure = Failure("digits", "raised", "no", 7, "p")
    score = Scored(7, 1, {"digits": None, "numeric": 0.1}, 0.1, [failure])
    batch = Batch(3, [Group(prompt, [make_sample(4)])], [score], 1.5)
    state = json.loads(json.dumps(batch.state_dict()))
    again = Batch.of(state, [Prompt(6, (9,), "q"), prompt])
    assert again == batch
    assert again.groups[0].samples[0].sources == [TokenSource.MODEL, TokenSource.TOOL]
    assert isinstance(again.groups[0].samples[0].finish_reason, FinishReason)
    with pytest.raises(CheckpointError, match="samples of prompt 7"):
        Batch.of(state, [])


def test_a_token_that_is_too_old_is_not_trained_on() -> None:
    config = build_config(merge(SECTIONS, AHEAD))
    groups = [Group(Prompt(7, (1,), "p"), [make_sample(4)])]
    check_versions(groups, 6, config)
    with pytest.raises(EngineError, match="version 4 of the policy, and version 7 .* of 2"):
        check_versions(groups, 7, config)
    without = build_config(SECTIONS)
    with pytest.raises(EngineError, match="staleness = 0 allows a distance of 0"):
        check_versions(groups, 5, without)
