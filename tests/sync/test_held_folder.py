"""What a killed process leaves is removed by the next, and nothing that a live one holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.sync.held_folder import HeldFolder, remove_left

HOLDER = """
import sys
from roost.sync.held_folder import HeldFolder
folder = HeldFolder("test", in_memory=False)
(folder.path / "bucket").write_bytes(bytes(1000))
print(folder.path, flush=True)
{then}
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of this test alone for temporary files, its own and its processes'."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.fixture
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process, and the folder that it holds."""
    with start("sys.stdin.read()") as process:
        yield process, said(process)
        process.kill()


def start(then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def said(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_goes_with_the_next(
    holder: tuple[subprocess.Popen[str], Path],
) -> None:
    process, left = holder
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (left / "bucket").exists(), "a killed process removes nothing"
    folder = HeldFolder("other", in_memory=False)
    assert not left.exists()
    assert folder.path.is_dir()
    folder.close()


def test_what_a_live_process_holds_stays(holder: tuple[subprocess.Popen[str], Path]) -> None:
    _, held = holder
    mine = HeldFolder("test", in_memory=False)
    remove_left(held.parent)
    assert (held / "bucket").exists()
    assert mine.path.is_dir()
    mine.close()


def test_it_goes_with_a_process_that_ends_in_order(temporary: Path) -> None:
    with start("") as process:
        assert said(process).parent == temporary
    assert list(temporary.iterdir()) == []


def test_a_fork_of_the_owner_removes_nothing(temporary: Path) -> None:
    """Such as a worker process, which ends as Python ends."""
    fork = "import os; sys.exit() if not os.fork() else os.wait(); print(folder.path.is_dir())"
    with start(fork) as process:
        said(process)
        assert process.stdout is not None
        assert process.stdout.read() == "True\n"


def test_folders_of_other_names_are_let_alone(tmp_path: Path) -> None:
    """Those of an earlier Roost may be in use, and it did not hold them."""
    for name in ("roost-server-abcdefgh", "other.held"):
        (tmp_path / name).mkdir()
    (tmp_path / "roost-file.held").touch()
    (tmp_path / "roost-link.held").symlink_to(tmp_path / "other.held")
    remove_left(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"roost-server-abcdefgh", "other.held", "roost-file.held", "roost-link.held"}


def test_it_is_for_its_owner_alone() -> None:
    folder = HeldFolder("test")
    try:
        assert folder.path.stat().st_mode & 0o077 == 0
    finally:
        folder.close()
    assert not folder.path.exists()
