"""`roost pilot`: fits against made-up machines, and a whole pilot of the tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from roost.config.loading import build_config, merge
from roost.errors import ConfigError
from roost.planner.measured import Speeds, read_pilot, recipe_digest
from roost.run.display import QuietDisplay
from roost.run.pilot import PilotResult, run_pilot
from roost.run.pilot import _memory_refused as memory_refused
from roost.run.pilot_speeds import Call, decoding_speeds, non_negative
from support.tiny_runs import SECTIONS, train_tiny


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def piloted(home: Path) -> PilotResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOST_HOME", str(home))
        return run_pilot(build_config(SECTIONS), Path.cwd(), QuietDisplay(), steps=2)


def test_a_machine_with_known_speeds_is_recovered() -> None:
    speeds = (2e-4, 3e-2, 5e-4, 1e-6)
    calls = []
    for prompts, steps, rows, context in [
        (100, 2, 8, 60),
        (400, 2, 32, 60),
        (400, 32, 32, 80),
        (900, 64, 64, 300),
        (50, 20, 1, 500),
    ]:
        work = (prompts, steps, steps * rows, steps * rows * context)
        calls.append(Call(*work, seconds=sum(a * b for a, b in zip(speeds, work, strict=True))))
    found = decoding_speeds(calls)
    assert list(found.values()) == pytest.approx(speeds, rel=1e-6)


def test_no_speed_is_negative() -> None:
    """The best without the bound is (1, -1)."""
    found = non_negative(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 0.0]))
    assert found == pytest.approx([0.5, 0.0])


def test_what_is_written_is_read(piloted: PilotResult, home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOST_HOME", str(home))
        assert read_pilot(piloted.pilot.place) == piloted.pilot
    assert piloted.path.parent == home / "pilot"
    assert recipe_digest(build_config(SECTIONS)) in piloted.pilot.workloads


def test_its_plan_has_seconds_and_the_rehearsed_peaks(piloted: PilotResult) -> None:
    plan = piloted.plan
    assert plan.step is not None
    assert 0 < plan.step.low_s < plan.step.total_s < plan.step.high_s
    # A step that holds fewer tokens than a micro-batch is rehearsed whole.
    generate, train, *_ = [phase.bytes for phase in plan.phases]
    assert generate == piloted.generate_peak_bytes
    assert train == piloted.train_peak_bytes


def test_a_run_after_it_is_planned_with_it(
    piloted: PilotResult, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOST_HOME", str(home))
    lines = train_tiny(tmp_path / "run", Path.cwd()).lines
    assert any("measured here" in line for line in lines)
    assert any(line.startswith("train    planned") and "planned" in line for line in lines)


def test_a_pilot_leaves_the_lengths_that_the_run_will_have(
    piloted: PilotResult, tmp_path: Path
) -> None:
    """With nothing learnt, the run's first steps draw the same completions."""
    still = {"train": {"learning_rate": 0.0}}
    run = train_tiny(tmp_path / "run", Path.cwd(), still)
    from roost.run.metrics import read_metrics

    drawn = [row["tokens/generated"] for row in read_metrics(run.folder.metrics)]
    [load] = piloted.pilot.workloads.values()
    assert load.tokens == pytest.approx(sum(drawn) / len(drawn))


def test_memory_that_runs_out_names_the_phase() -> None:
    refused = pytest.raises(ConfigError, match="train phase.*train.micro_batch_tokens")
    with refused, memory_refused("train"):
        raise torch.OutOfMemoryError("no")


def test_vllm_is_refused() -> None:
    config = build_config(merge(SECTIONS, {"rollout": {"engine": "vllm"}}))
    with pytest.raises(ConfigError, match="rollout.engine = 'vllm'"):
        run_pilot(config, Path.cwd(), QuietDisplay(), steps=1)


def test_speeds_are_all_there(piloted: PilotResult) -> None:
    speeds = piloted.pilot.speeds
    assert isinstance(speeds, Speeds)
    assert speeds.kept_token_s > 0
    assert speeds.optimizer_parameter_s > 0
