from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from roost.errors import CheckpointError
from roost.run import folder


def test_default_name_says_model_and_time() -> None:
    name = folder.default_folder("org/Model-1B", datetime(2026, 1, 2, 3, 4, 5))
    assert name == Path("runs/Model-1B-20260102-030405")


def test_runs_of_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(3):
        path = folder.default_folder("tiny", datetime(2026, 1, 2, 3, 4, 5))
        path.mkdir(parents=True)
        names.append(path.name)
    assert names == ["tiny-20260102-030405", "tiny-20260102-030405-2", "tiny-20260102-030405-3"]


def make_run(root: Path, age: float = 0.0) -> Path:
    root.mkdir(parents=True)
    (root / "config.toml").write_text("")
    os.utime(root / "config.toml", (1e9 - age, 1e9 - age))
    return root


def test_a_run_that_is_not_there_names_one_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no such folder\)\. Runs are made by"):
        folder.existing_run(Path("runs/first"), "--resume")
    make_run(tmp_path / "runs" / "first", age=1000)
    make_run(tmp_path / "runs" / "other")
    with pytest.raises(CheckpointError, match="Did you mean 'runs/first'"):
        folder.existing_run(Path("runs/firts"), "--resume")
    with pytest.raises(CheckpointError, match="no config.toml in it.*Did you mean 'runs/other'"):
        folder.existing_run(Path("runs"), "--resume")


def test_where_relative_paths_start_is_needed(tmp_path: Path) -> None:
    run = folder.RunFolder(make_run(tmp_path / "run"))
    for content in (None, "{", "[]", "{}"):
        if content is not None:
            run.environment.write_text(content)
        with pytest.raises(CheckpointError, match=r"environment\.json' cannot be read"):
            folder.base_dir_of(run)
    run.environment.write_text('{"base_dir": "/somewhere"}')
    assert folder.base_dir_of(run) == Path("/somewhere")


def test_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    folder.write_json(path, {"a": 1})
    folder.write_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 2\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
