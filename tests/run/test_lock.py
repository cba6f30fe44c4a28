from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from roost.errors import CheckpointError
from roost.run.lock import LOCK_NAME, FolderLock, is_live
from roost.run.metrics import read_metrics
from support.tiny_runs import train_tiny


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


def test_a_look_at_a_folder_keeps_no_run_out(tmp_path: Path) -> None:
    """``roost show`` takes the lock for an instant to see whether somebody has it."""
    (tmp_path / LOCK_NAME).write_text("1")
    with (tmp_path / LOCK_NAME).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        timer = threading.Timer(0.07, fcntl.flock, (file, fcntl.LOCK_UN))
        timer.start()
        FolderLock(tmp_path).release()
        timer.join()


def test_a_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written: No such file"):
        FolderLock(tmp_path / "absent")


WAITING = """
import os, time
def waits(completions):
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
        time.sleep(0.02)
    return [float(len(text)) for text in completions]
"""
"""A reward that lets no run end before it may."""


@pytest.mark.slow
def test_of_two_that_resume_at_once_one_goes_on_and_the_other_is_told(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(WAITING)
    (tmp_path / "go").touch()
    sections = {"rewards": ["r.py:waits"], "eval": {"prompts": 0}}
    run = train_tiny(tmp_path / "run", tmp_path, sections)
    (tmp_path / "go").unlink()

    command = [sys.executable, "-m", "roost", "train", "--resume", str(run.folder.root), "--json"]
    both = [
        subprocess.Popen(
            [*command, "--set", "train.steps=4"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                # As the run that they resume; otherwise they would warn.
                "OMP_NUM_THREADS": str(torch.get_num_threads()),
            },
        )
        for _ in range(2)
    ]
    give_up = time.monotonic() + 120
    while all(process.poll() is None for process in both):
        assert time.monotonic() < give_up, "neither was told"
        time.sleep(0.05)
    (tmp_path / "go").touch()
    told, goes_on = sorted(both, key=lambda process: process.poll() is None)
    refusal = told.communicate(timeout=120)[1]
    assert told.returncode == 2
    assert f"is in use by process {goes_on.pid}. Wait for it, or stop it." in refusal
    assert goes_on.communicate(timeout=120)[1] == ""
    assert goes_on.returncode == 0
    assert [row["step"] for row in read_metrics(run.folder.metrics)] == [1, 2, 3, 4]
