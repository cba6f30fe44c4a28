from __future__ import annotations

import os
from pathlib import Path

import pytest

from roost.errors import CheckpointError, ConfigError
from roost.run.claim import Claim, check_new


def test_a_kept_folder_stays(tmp_path: Path) -> None:
    with Claim(tmp_path / "a" / "b") as claim:
        claim.keep()
    assert claim.folder.samples.is_dir()
    assert claim.folder.checkpoints.is_dir()


def test_a_run_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    def begin() -> None:
        with Claim(tmp_path / "a" / "b") as claim:
            claim.folder.config.write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays_empty(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GB are free and the run will write about"):
        Claim(tmp_path, expected_bytes=2**60)
    assert list(tmp_path.iterdir()) == []


def test_a_neighbour_that_moved_in_is_left_alone(tmp_path: Path) -> None:
    with Claim(tmp_path / "runs" / "one"):
        (tmp_path / "runs" / "two").mkdir()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["two"]


def test_two_cannot_have_one_folder(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with Claim(root) as claim:
        with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}"):
            Claim(root)
        claim.keep()
    assert root.is_dir()


@pytest.mark.parametrize(
    ("name", "message"),
    [("config.toml", r"already holds a run.*--resume"), ("thesis.tex", "holds other files")],
)
def test_what_is_there_is_not_mixed_up(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=message):
        Claim(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: '.*f' is a file"):
        check_new(tmp_path / "f" / "run")
    with pytest.raises(ConfigError, match="is a file"):
        check_new(tmp_path / "f")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; runs for other users")
def test_an_unwritable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="may not be written by you"):
        check_new(tmp_path / "run")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_folder_that_nobody_can_make() -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        Claim(Path("/proc/roost/run"))


def test_a_folder_left_by_a_run_killed_before_it_began_is_free(tmp_path: Path) -> None:
    with Claim(tmp_path / "run") as claim:
        claim.folder.environment.write_text("{}")
        claim.keep()
    with Claim(tmp_path / "run") as claim:
        claim.keep()
    (tmp_path / "run" / "checkpoints" / "mine").touch()
    with pytest.raises(ConfigError, match="holds other files"):
        check_new(tmp_path / "run")


def test_an_environment_that_no_run_wrote_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds other files"):
        check_new(tmp_path)
