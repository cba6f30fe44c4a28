from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from roost.errors import CheckpointError
from roost.run import checkpoint
from roost.run.checkpoint import Checkpoint


def point(step: int, value: float = 1.0) -> Checkpoint:
    weights = {"a": torch.full((3, 2), value), "b": torch.arange(4.0).bfloat16()}
    return Checkpoint(step, weights, {"a.master": torch.ones(3, 2)}, {"step": step, "x": [1, 2]})


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, point(3, 0.1), keep=2)
    loaded = checkpoint.load(tmp_path)
    assert loaded.step == 3
    assert loaded.state == {"step": 3, "x": [1, 2]}
    for name, tensor in point(3, 0.1).weights.items():
        assert torch.equal(loaded.weights[name], tensor)
        assert loaded.weights[name].dtype == tensor.dtype


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10, 11):
        checkpoint.save(tmp_path, point(step), keep=2)
    assert checkpoint.steps(tmp_path) == [10, 11]


def test_an_older_one_is_loaded_when_asked(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, point(step), keep=2)
    assert checkpoint.load(tmp_path, 1).step == 1


def test_a_step_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, point(4), keep=2)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 5; it holds 4"):
        checkpoint.load(tmp_path, 5)


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoint.load(tmp_path)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda p: flip_a_bit(p / "weights.safetensors"), "weights.safetensors does not have the"),
        (lambda p: flip_a_bit(p / "optimizer.safetensors"), "optimizer.safetensors does not have"),
        (lambda p: (p / "state.json").unlink(), "state.json is missing"),
        (lambda p: os.truncate(p / "weights.safetensors", 10), "has 10 bytes instead of"),
        (lambda p: (p / "manifest.json").write_text("{"), "manifest.json cannot be read"),
    ],
)
def test_damage_is_refused_and_the_one_before_offered(tmp_path: Path, spoil, reason: str) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, point(step), keep=2)
    spoil(tmp_path / "step-2")
    with pytest.raises(CheckpointError, match=reason) as error:
        checkpoint.load(tmp_path)
    assert "--from-step 1" in str(error.value)
    assert checkpoint.load(tmp_path, 1).step == 1


def test_another_versions_format_is_named(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, point(1), keep=1)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest |= {"format": 99, "roost": "9.0"}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"written by Roost 9\.0 in format 99"):
        checkpoint.load(tmp_path)


def test_a_failed_write_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, point(1), keep=2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_json", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoint.save(tmp_path, point(2), keep=2)
    assert checkpoint.steps(tmp_path) == [1]
    assert checkpoint.load(tmp_path).step == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]


def test_a_kill_while_writing_never_shows_a_part(tmp_path: Path) -> None:
    script = (
        "import torch, sys; from pathlib import Path; from roost.run import checkpoint\n"
        "from roost.run.checkpoint import Checkpoint\n"
        "print('ready', flush=True)\n"
        "for step in range(1, 100000):\n"
        "    t = {'w': torch.full((200_000,), float(step))}\n"
        "    checkpoint.save(Path(sys.argv[1]), Checkpoint(step, t, t, {'step': step}), keep=2)\n"
    )
    for delay in (0.05, 0.11, 0.2):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.kill()
        process.wait()
        process.stdout.close()
        if checkpoint.steps(tmp_path):
            loaded = checkpoint.load(tmp_path)
            assert torch.equal(loaded.weights["w"], torch.full((200_000,), float(loaded.step)))
    assert checkpoint.steps(tmp_path)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        checkpoint.save(tmp_path, point(3, value), keep=1)
    assert torch.equal(checkpoint.load(tmp_path).weights["a"], torch.full((3, 2), 2.0))
    assert [p.name for p in tmp_path.iterdir()] == ["step-3"]


def test_a_failed_replacement_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, point(3, 1.0), keep=1)
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name.endswith(".part"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(CheckpointError, match="Earlier checkpoints are untouched"):
        checkpoint.save(tmp_path, point(3, 2.0), keep=1)
    assert torch.equal(checkpoint.load(tmp_path).weights["a"], torch.full((3, 2), 1.0))


def test_what_a_kill_left_is_settled_and_nothing_else(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, point(step), keep=2)
    for name in (".step-3.part", ".step-2.old", ".step-0.gone", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    checkpoint.settle(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step-1", "step-2"]
    assert checkpoint.load(tmp_path).step == 2
    checkpoint.settle(tmp_path / "absent")


def test_weights_of_another_model_are_refused() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(CheckpointError, match="'other'"):
        checkpoint.restore_weights({"w": parameter}, {"w": torch.ones(2), "other": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"shape \(3,\)"):
        checkpoint.restore_weights({"w": parameter}, {"w": torch.ones(3)})
    checkpoint.restore_weights({"w": parameter}, {"w": torch.ones(2)})
    assert torch.equal(parameter.detach(), torch.ones(2))


@pytest.mark.parametrize("calls", range(8))
def test_a_kill_while_a_step_is_saved_again_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """A run that is stopped right after a checkpoint writes it again."""
    checkpoint.save(tmp_path, point(2, 1.0), keep=1)
    left = calls

    def until_killed(function):
        def wrapped(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", until_killed(Path.rename))
        patch.setattr(os, "unlink", until_killed(os.unlink))
        patch.setattr(os, "rmdir", until_killed(os.rmdir))
        with contextlib.suppress(KeyboardInterrupt):
            checkpoint.save(tmp_path, point(2, 5.0), keep=1)
    checkpoint.settle(tmp_path)
    assert checkpoint.load(tmp_path).weights["a"][0, 0] in (1.0, 5.0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def test_a_kill_while_an_old_one_is_removed_leaves_no_half_to_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, point(1), keep=1)

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if path.exists():
            (path / "weights.safetensors").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, point(2), keep=1)
    assert checkpoint.steps(tmp_path) == [2]
    checkpoint.settle(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]
