"""Ctrl-C and SIGTERM save and stop; ``--resume`` finishes what they stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from safetensors.torch import load_file

from roost.config.loading import merge
from roost.run import checkpoint
from roost.run.interrupts import Interrupted, StopSwitch
from roost.run.lock import is_live
from roost.run.metrics import read_metrics
from support.desk import SMALL_RUN

STEPS = 60
RECIPE = merge(
    SMALL_RUN, {"train": {"steps": STEPS}, "output": {"checkpoint_every": 0, "samples_every": 0}}
)
DEADLINE_S = 120.0


def launch(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "roost", "train", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        # A process group of its own, as a shell gives each command.
        start_new_session=True,
    )


def wait_for_steps(process: subprocess.Popen[str], metrics: Path, count: int) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while len(read_metrics(metrics)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up, f"no {count} steps in {DEADLINE_S} s"
        time.sleep(0.02)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, error = process.communicate(timeout=DEADLINE_S)
    return process.returncode, output, error


def steps_of(run: Path) -> list[Any]:
    return [row["step"] for row in read_metrics(run / "metrics.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to_group"),
    [
        # A terminal sends Ctrl-C to all of a command's processes, reward workers included.
        pytest.param(signal.SIGINT, True, id="ctrl-c"),
        pytest.param(signal.SIGTERM, False, id="sigterm"),
    ],
)
def test_a_stop_saves_and_resume_finishes(
    tmp_path: Path, number: signal.Signals, to_group: bool
) -> None:
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(RECIPE))
    run = tmp_path / "run"
    process = launch(tmp_path, "recipe.toml")
    wait_for_steps(process, run / "metrics.jsonl", 2)
    (os.killpg if to_group else os.kill)(process.pid, number)
    code, output, error = finish(process)

    assert code == 0, error
    assert "Traceback" not in error
    assert "warning" not in error
    assert "stopped; go on with: roost train --resume run" in output
    done = steps_of(run)[-1]
    assert 2 <= done < STEPS
    assert checkpoint.steps(run / "checkpoints") == [done]
    assert json.loads((run / "report.json").read_text())["finished"] is False
    assert not (run / "final").exists()
    assert not is_live(run)

    code, output, error = finish(launch(tmp_path, "--resume", "run", "--json"))
    assert code == 0, error
    assert json.loads(output)["finished"] is True
    assert steps_of(run) == list(range(1, STEPS + 1))
    assert checkpoint.steps(run / "checkpoints") == [done, STEPS]
    assert load_file(run / "final" / "model.safetensors")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_does_not(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSwitch() as stop:
        stop.check()
        signal.raise_signal(number)
        with pytest.raises(Interrupted):
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_closed_terminal_asks_however_often_it_hangs_up() -> None:
    with StopSwitch() as stop:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(Interrupted):
            stop.check()


def test_a_run_started_to_outlive_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopSwitch() as stop:
            signal.raise_signal(signal.SIGHUP)
            stop.check()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    """``roost train 2>&1 | head -1``."""
    recipe = merge(SMALL_RUN, {"output": {"folder": "run"}})
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(recipe))
    process = launch(tmp_path, "recipe.toml")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    process.stdout.close()
    assert process.wait(timeout=DEADLINE_S) == 0
    assert json.loads((tmp_path / "run" / "report.json").read_text())["finished"] is True
