"""Law 7: N steps, a kill, and the rest equal an uninterrupted run, bit for bit on a CPU."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from support.kill_loop import killed_at_random
from support.killed_runs import assert_same_run, launch

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


@pytest.mark.slow
def test_killed_at_any_moment_equals_whole(whole: tuple[str, Path], tmp_path: Path) -> None:
    """``python tests/support/kill_loop.py`` goes on for as long as one likes."""
    method, folder = whole
    killed = tmp_path / "killed"
    assert killed_at_random(killed, method, random.Random(f"kills {method}"), kills=4) >= 1
    assert_same_run(folder, killed)
