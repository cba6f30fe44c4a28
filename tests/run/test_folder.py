from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from roost.errors import CheckpointError, ConfigError
from roost.run import folder
from roost.run.folder import FolderLock


def test_default_name_says_model_and_time() -> None:
    name = folder.default_folder("org/Model-1B", datetime(2026, 1, 2, 3, 4, 5))
    assert name == Path("runs/Model-1B-20260102-030405")


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    made = folder.create(tmp_path / "a" / "b")
    assert made.samples.is_dir()
    assert made.checkpoints.is_dir()


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ConfigError, match=r"already holds a run.*--resume"):
        folder.create(tmp_path)


def test_a_folder_with_other_files_is_not_mixed_up(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="holds other files"):
        folder.create(tmp_path)


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        folder.create(tmp_path / "f" / "run")


def test_a_full_disk_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GB are free and the run will write about"):
        folder.create(tmp_path / "run", expected_bytes=2**60)


def test_a_live_run_keeps_others_out(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from roost.run.folder import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    with pytest.raises(CheckpointError, match=f"in use by process {process.pid}"):
        FolderLock(tmp_path)
    assert folder.is_live(tmp_path)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert not folder.is_live(tmp_path)
    FolderLock(tmp_path).release()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; runs for other users")
def test_an_unwritable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="cannot be written: Permission denied"):
        folder.create(tmp_path / "run")


def test_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    folder.write_json(path, {"a": 1})
    folder.write_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 2\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
