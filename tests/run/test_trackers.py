"""Trackers receive each step's metrics, and what they print or cannot do spoils no run."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from roost.errors import ConfigError
from roost.run.metrics import read_metrics
from roost.run.trackers import check_trackers, open_trackers
from support.commands import run, succeed
from support.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch, tmp_path)


class Recorder(SimpleNamespace):
    """A module with the calls of wandb and trackio, which prints as they do."""

    def __init__(self) -> None:
        super().__init__(calls=[])

    def init(self, **options: Any) -> None:
        print("a tracker says hello")
        self.calls.append(("init", options))

    def log(self, metrics: dict[str, float], step: int) -> None:
        print("a tracker logs")
        self.calls.append((step, metrics))

    def finish(self) -> None:
        print("a tracker says goodbye")
        self.calls.append(("finish", None))


@pytest.fixture(params=["trackio", "wandb"])
def recorded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any]:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, request.param, recorder)
    monkeypatch.setattr("roost.run.trackers.find_spec", lambda name: object())
    return request.param, recorder


def test_each_step_arrives_and_standard_output_stays_ours(
    desk: Desk, recorded: tuple[str, Any]
) -> None:
    name, recorder = recorded
    said = succeed(*desk.train(output={"trackers": [name]}))
    assert said.json["finished"] is True
    assert "a tracker says hello" in said.error
    assert "a tracker says goodbye" in said.error

    (_, options), *steps, last = recorder.calls
    assert (options["project"], options["name"]) == ("roost", "run")
    assert options["config"]["train"]["steps"] == 2
    assert options.get("dir", "run") == "run", "its files stay within the run's folder"
    rows = read_metrics(desk.root / "run/metrics.jsonl")
    assert [(step, without_nan(row)) for step, row in steps] == [
        (row.pop("step"), row) for row in rows
    ]
    assert last == ("finish", None)


def without_nan(row: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in row.items()}


def refuse(**options: Any) -> None:
    raise PermissionError("No API key configured. Use `wandb login` to log in.\nmore")


def test_a_tracker_that_cannot_start_is_one_error_and_leaves_nothing(
    desk: Desk, recorded: tuple[str, Any]
) -> None:
    name, recorder = recorded
    recorder.init = refuse
    before, files = psutil.Process().children(), desk.files()
    said = run(*desk.train(output={"trackers": [name]}))
    assert said.code == 2
    assert said.error == (
        f"error: output.trackers: '{name}' cannot start: PermissionError: No API key configured. "
        "Use `wandb login` to log in. Set it up, or leave it out.\n"
    )
    assert psutil.Process().children() == before
    assert desk.files() - files == {"recipe.toml"}


def test_those_before_one_that_cannot_start_are_ended(
    recorded: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, recorder = recorded
    other = "wandb" if name == "trackio" else "trackio"
    monkeypatch.setitem(sys.modules, other, SimpleNamespace(init=refuse))
    with pytest.raises(ConfigError, match=f"'{other}' cannot start"):
        open_trackers([name, other], tmp_path, {})
    assert [call for call, _ in recorder.calls] == ["init", "finish"]


def test_a_tracker_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.run.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'wandb', which is not installed.*pip install wandb"):
        check_trackers(["wandb"])


REAL = ("tensorboard", "trackio", "wandb")


@pytest.mark.parametrize("name", REAL)
@pytest.mark.filterwarnings("default")  # of the trackers' own code
def test_a_real_tracker_takes_a_run(name: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(desk.root / "trackio"))  # which it reads when imported
    pytest.importorskip(name, reason=f"runs where roost[{name}] is installed")
    said = succeed(*desk.train(output={"trackers": [name]}))
    assert said.json["finished"] is True
    if name == "tensorboard":
        assert tensorboard_rewards(desk.root / "run/tensorboard") == [
            (row["step"], pytest.approx(row["reward"]))
            for row in read_metrics(desk.root / "run/metrics.jsonl")
        ]
    if name == "wandb":
        assert list((desk.root / "run/wandb").glob("offline-run-*/*.wandb"))
    assert not (desk.root / "wandb").exists()


def tensorboard_rewards(folder: Path) -> list[tuple[int, float]]:
    place = "tensorboard.backend.event_processing.event_accumulator"
    events = import_module(place).EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("reward")]
