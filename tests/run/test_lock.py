from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from roost.errors import CheckpointError
from roost.run.lock import FolderLock, is_live


def test_a_live_run_keeps_others_out(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from roost.run.lock import FolderLock\n"
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
    assert is_live(tmp_path)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert not is_live(tmp_path)
    FolderLock(tmp_path).release()


def test_a_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written: No such file"):
        FolderLock(tmp_path / "absent")
