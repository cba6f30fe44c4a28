"""The race's protocol: whoever fails costs its own row alone, and is named with the reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from roost.bench.contender import Contender, ContenderLost
from roost.bench.race import race

FAKE = Path(__file__).parent.parent / "support" / "fake_contender.py"


@pytest.fixture
def starter(tmp_path: Path) -> Callable[..., tuple[str, Callable[[], Contender]]]:
    def make(name: str, *arguments: str) -> tuple[str, Callable[[], Contender]]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(FAKE), *arguments]
        return name, lambda: Contender(
            name, command, log=tmp_path / f"{name}.log", environment=environment
        )

    return make


def test_turns_are_taken_in_turn_and_the_first_is_not_counted(starter) -> None:
    said: list[str] = []

    outcomes = race(
        [starter("a", "steps", "9", "1", "2"), starter("b", "steps", "9", "3", "4")],
        rounds=2,
        deadline_s=60,
        say=said.append,
    )

    assert [[turn.step_s for turn in outcome.turns] for outcome in outcomes] == [[1, 2], [3, 4]]
    assert outcomes[0].settings == {"threads": 1}
    order = [line.split(",")[0] for line in said if "loading" not in line]
    assert order == [
        "a: warm-up", "b: warm-up", "a: step 1", "b: step 1", "a: step 2", "b: step 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("dies loading", "died with exit code 1; its last words: 'no such model'"),
        ("cannot load", "failed: ModelError: no weights"),
        ("dies", "died with exit code 3; its last words: 'out of luck'"),
        ("prints garbage", "reported what is not a measurement (it is not JSON): 'Loading: 100%'"),
        ("reports nonsense", "reported what is not a measurement (step_s is -1)"),
    ],
)
def test_who_fails_costs_its_own_row(starter, behaviour: str, reason: str) -> None:
    outcomes = race(
        [starter("bad", behaviour), starter("good", "steps", "1")],
        rounds=2,
        deadline_s=60,
        say=lambda text: None,
    )

    bad, good = outcomes
    assert bad.failure is not None
    assert reason in bad.failure
    assert bad.turns == []
    assert good.failure is None
    assert len(good.turns) == 2


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("hangs loading", "more than 4 s to load"), ("hangs", "more than 4 s for a step")],
)
def test_who_hangs_is_killed_at_the_deadline(starter, behaviour: str, reason: str) -> None:
    _, start = starter("slow", behaviour)
    contender = start()
    process = psutil.Process(contender._process.pid)
    begin = time.monotonic()

    def wait() -> None:
        with contender:
            contender.wait_ready(4)
            contender.turn(4)

    with pytest.raises(ContenderLost, match=reason):
        wait()

    assert time.monotonic() - begin < 30
    assert not process.is_running()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process(starter, number: signal.Signals) -> None:
    started: list[Contender] = []
    name, start = starter("a", "steps", "1")

    def remembered() -> Contender:
        started.append(start())
        return started[0]

    def say(text: str) -> None:
        if "step 1" in text:
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        race([(name, remembered)], rounds=5, deadline_s=60, say=say)

    assert not psutil.pid_exists(started[0]._process.pid)


def test_who_waits_is_stopped(starter) -> None:
    _, start = starter("a", "steps", "1")
    with start() as contender:
        process = psutil.Process(contender._process.pid)
        contender.wait_ready(60)
        assert process.status() == psutil.STATUS_STOPPED
        contender.turn(60)
        assert process.status() == psutil.STATUS_STOPPED


def test_who_starts_programs_is_stopped_too(starter) -> None:
    """A program that is stopped before it runs would hold its parent up for good."""
    _, start = starter("a", "starts programs")
    with start() as contender:
        process = psutil.Process(contender._process.pid)
        contender.wait_ready(60)
        for _ in range(30):
            contender.turn(60)
            assert process.status() == psutil.STATUS_STOPPED


def test_a_killed_race_leaves_no_process(tmp_path: Path) -> None:
    """The parent has no chance to tidy up: the system ends the group that waits."""
    script = f"""
import os, sys, time
from pathlib import Path
from roost.bench.contender import Contender
command = [sys.executable, {str(FAKE)!r}, "steps", "1"]
contender = Contender("a", command, log=Path({str(tmp_path / "log")!r}), environment=os.environ)
contender.wait_ready(60)
print(contender._process.pid, flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))

    parent.kill()
    parent.wait()
    parent.stdout.close()

    gone, _ = psutil.wait_procs([child], timeout=30)
    assert gone
