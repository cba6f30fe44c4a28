"""Runs of several processes under ``torchrun``, from the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from safetensors.torch import load_file

from roost.run.metrics import read_metrics

DEADLINE_S = 90.0


def start(
    folder: Path, ranks: int, *arguments: str, program: tuple[str, ...] = ("-m", "roost")
) -> subprocess.Popen[str]:
    """Begin ``roost train`` with so many processes; ``program`` stands for ``-m roost``."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.Popen(
        [sys.executable, *(launcher if ranks > 1 else []), *program, "train", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "OMP_NUM_THREADS": "1",
        },
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], deadline_s: float = DEADLINE_S) -> tuple[int, str]:
    """Exit code and what it said on standard error."""
    try:
        _, error = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, error


def train(folder: Path, ranks: int, *arguments: str) -> None:
    """Run to the end."""
    code, error = finish(start(folder, ranks, *arguments))
    assert code == 0, error


def difference(one: Path, other: Path, step: int = 3) -> float:
    """Largest difference between the trained weights of two runs after a step."""
    file = f"checkpoints/step-{step}/weights.safetensors"
    a, b = (load_file(run / file) for run in (one, other))
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def wait_for_step(process: subprocess.Popen[str], metrics: Path) -> None:
    """Until the first step is done."""
    give_up = time.monotonic() + DEADLINE_S
    while not read_metrics(metrics):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.05)


def rank_process(process: subprocess.Popen[str], rank: int) -> psutil.Process:
    """The process of one rank."""
    children = psutil.Process(process.pid).children()
    return next(child for child in children if child.environ().get("RANK") == str(rank))
