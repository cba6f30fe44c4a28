from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from roost.config import RewardsConfig
from roost.errors import RewardError
from roost.rewards import RewardPool, Scored, ScoringReport, load_rewards
from roost.samples import FinishReason, Prompt, Sample, TokenSource

FILE = """
import os, re, sys, time

def length(completions): return [float(len(t)) for t in completions]
def noisy(completions):
    print("noise" * 1000); sys.stdout.flush(); os.write(1, b"raw")
    return [1.0 for _ in completions]
async def later(completions): return [0.25 for _ in completions]
def pid(completions): return [float(os.getpid())]
def columns(completions, answer, prompts, completion_ids, finish_reasons):
    assert prompts == ["p"] and completion_ids == [[1]] and finish_reasons == ["stop"]
    return answer
def everything(completions, **columns): return [float(len(columns))]
def misbehave(completions):
    t = completions[0]
    if t == "raise": raise ValueError("boom")
    if t == "sleep": time.sleep(60)
    if t == "spin":
        while True: pass
    if t == "regex": re.match(r"(a+)+$", "a" * 40 + "b")
    if t == "exit": os._exit(3)
    if t == "kill": os.kill(os.getpid(), 9)
    if t == "memory": return [float(len(bytearray(8 * 2**30)))]
    if t == "nan": return [float("nan")]
    if t == "inf": return [float("inf")]
    if t == "none": return [None]
    if t == "two": return [1.0, 2.0]
    if t == "scalar": return 1.0
    if t == "deaf":
        os.closerange(3, 1000)
        time.sleep(60)
    if t == "text": return ["x"]
    if t == "system exit": sys.exit(1)
    return [1.0]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards")
    (path / "r.py").write_text(FILE)
    return path


def sample(text: str, index: int = 0, prompt_id: int = 0) -> Sample:
    return Sample(
        prompt_id, index, [1], [0.0], [0.0], FinishReason.STOP, [0], [TokenSource.MODEL], text
    )


def make_pool(
    folder: Path, *functions: Any, deadline_s: float = 20.0, **options: Any
) -> RewardPool:
    config = RewardsConfig.model_validate({"functions": list(functions)})
    named = options.pop("named", {})
    rewards = load_rewards(config, folder, functions=named)
    return RewardPool(rewards, deadline_s=deadline_s, **options)


def score(pool: RewardPool, *texts: str, columns: dict[str, Any] | None = None) -> list[Scored]:
    prompt = Prompt(0, (1,), "p", columns or {})
    for index, text in enumerate(texts):
        pool.submit(prompt, sample(text, index))
    return sorted(pool.drain(), key=lambda scored: scored.index)


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[RewardPool]:
    with make_pool(folder, "r.py:misbehave", workers=2, deadline_s=1.5, memory_bytes=2**30) as pool:
        score(pool, "warm", "warm")
        yield pool


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("raise", "raised", "ValueError: boom"),
        ("sleep", "deadline", r"no answer within 1\.5 s"),
        ("spin", "deadline", "its worker was killed"),
        ("regex", "deadline", "its worker was killed"),
        ("deaf", "deadline", "its worker was killed"),
        ("exit", "died", "exit code 3"),
        ("kill", "died", "exit code -9"),
        ("system exit", "died", "exit code 1"),
        ("memory", "memory", "rewards.memory_bytes"),
        ("nan", "nan", "returned nan"),
        ("inf", "nan", "returned inf"),
        ("none", "none", "returned None"),
        ("two", "count", "2 values for 1 completion"),
        ("scalar", "type", "returned a float"),
        ("text", "type", "not a number"),
    ],
)
def test_misbehaviour_costs_one_sample(
    pool: RewardPool, text: str, kind: str, message: str
) -> None:
    import re

    bad, good = score(pool, text, "fine")
    assert bad.reward is None
    assert bad.rewards == {"misbehave": None}
    [failure] = bad.failures
    assert failure.kind == kind
    assert re.search(message, failure.message)
    assert failure.prompt == "p"
    assert good.reward == 1.0


def test_values_weights_and_columns(folder: Path) -> None:
    functions = [
        {"function": "r.py:length", "weight": 0.5},
        "r.py:noisy",
        "r.py:later",
        {"function": "r.py:columns", "weight": 10},
        "r.py:everything",
    ]
    with make_pool(folder, *functions, workers=1) as pool:
        [scored] = score(pool, "four", columns={"answer": 3})
    assert scored.rewards == {
        "length": 4.0,
        "noisy": 1.0,
        "later": 0.25,
        "columns": 3.0,
        "everything": 4.0,
    }
    assert scored.reward == pytest.approx(2.0 + 1.0 + 0.25 + 30.0 + 4.0)
    assert scored.failures == []


def test_one_failing_reward_leaves_the_others(folder: Path) -> None:
    with make_pool(folder, "r.py:length", "r.py:misbehave", workers=1) as pool:
        [scored] = score(pool, "raise")
    assert scored.rewards == {"length": 5.0, "misbehave": None}
    assert scored.reward == 5.0


def test_workers_are_started_once_and_reused(folder: Path) -> None:
    with make_pool(folder, "r.py:pid", workers=2) as pool:
        first = {scored.reward for scored in score(pool, *"abcdefgh")}
        again = {scored.reward for scored in score(pool, *"abcdefgh")}
    assert len(first | again) <= 2
    assert os.getpid() not in first


def test_a_worker_that_stops_reading_costs_its_sample(folder: Path) -> None:
    """A task larger than the pipe's buffer cannot even be sent to it."""
    with make_pool(folder, "r.py:length", workers=1, deadline_s=1.5) as pool:
        score(pool, "warm")
        [worker] = [thread._worker for thread in pool._threads]
        assert worker is not None
        [child] = psutil.Process(worker.process.pid).children()
        child.suspend()
        [lost] = score(pool, "x" * 2**22)
        [scored] = score(pool, "abc")
    assert lost.reward is None
    assert lost.failures[0].kind == "deadline"
    assert scored.reward == 3.0


def test_a_machine_that_starts_no_more_processes_ends_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than wait for a worker that never was."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("roost.rewards.process.subprocess.Popen", refuse)
    with (
        make_pool(folder, "r.py:length", workers=1) as pool,
        pytest.raises(RewardError, match=r"roost-reward-0 failed: BlockingIOError.*unavail"),
    ):
        score(pool, "x")


def test_mathematics_that_never_ends_costs_its_sample(folder: Path) -> None:
    with make_pool(folder, "math", workers=2, deadline_s=12.0) as pool:
        endless, fine = score(pool, "$2^{3^{4^{5^{6}}}}$", "$4$", columns={"answer": "4"})
    assert endless.reward in (None, 0.0)
    assert fine.reward == 1.0


def closure(offset: float) -> Callable[[list[str]], list[float]]:
    return lambda completions: [len(text) + offset for text in completions]


def test_python_functions_travel(folder: Path) -> None:
    with make_pool(folder, "f", named={"f": closure(0.5)}, workers=1) as pool:
        assert score(pool, "abc")[0].reward == 3.5


def test_many_samples_each_come_back_once(folder: Path) -> None:
    with make_pool(folder, "r.py:length", workers=2) as pool:
        scores = score(pool, *["x" * i for i in range(200)])
    assert [scored.reward for scored in scores] == [float(i) for i in range(200)]


def test_cancelled_samples_do_not_come_back(folder: Path) -> None:
    with make_pool(folder, "r.py:length", workers=1) as pool:
        for index in range(50):
            pool.submit(Prompt(1, (1,), "old"), sample("old", index, 1))
        pool.cancel()
        scores = score(pool, "new")
    assert [(scored.prompt_id, scored.reward) for scored in scores] == [(0, 3.0)]


def test_columns_that_cannot_travel_cost_their_sample(folder: Path) -> None:
    with make_pool(folder, "r.py:length", workers=1) as pool:
        [scored] = score(pool, "x", columns={"stream": lambda: None})
    assert scored.reward is None
    assert "cannot be sent to a worker" in scored.failures[0].message


def test_workers_that_cannot_start_end_the_run(folder: Path) -> None:
    pool = make_pool(folder, "r.py:length", workers=1)
    pool.close()
    config = RewardsConfig.model_validate({"functions": ["r.py:length"]})
    [reward] = load_rewards(config, folder)
    object.__setattr__(reward, "origin", ("file", str(folder / "gone.py"), "length"))
    with (
        RewardPool([reward], deadline_s=5, workers=1) as broken,
        pytest.raises(RewardError, match=r"cannot be started: .*gone\.py"),
    ):
        score(broken, "x")


def test_closing_in_the_middle_of_a_hang_is_quick(folder: Path) -> None:
    before = set(psutil.Process().children())
    pool = make_pool(folder, "r.py:misbehave", workers=1, deadline_s=60)
    score(pool, "fine")
    pool.submit(Prompt(0, (1,), "p"), sample("sleep"))
    time.sleep(0.3)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5
    assert set(psutil.Process().children()) == before


def test_a_killed_run_leaves_no_workers(folder: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from roost.config import RewardsConfig\n"
        "from roost.rewards import RewardPool, load_rewards\n"
        "from roost.samples import *\n"
        "c = RewardsConfig.model_validate({'functions': ['r.py:misbehave']})\n"
        "pool = RewardPool(load_rewards(c, Path(sys.argv[1])), deadline_s=100, workers=2)\n"
        "for text in ('fine', 'fine', 'spin', 'spin'):\n"
        "    pool.submit(Prompt(0, (1,), 'p'), Sample(0, 0, [1], [0.0], [0.0],\n"
        "        FinishReason.STOP, [0], [TokenSource.MODEL], text))\n"
        "    time.sleep(0.5)\n"
        "print('spinning', flush=True); time.sleep(100)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert run.stdout is not None
    run.stdout.readline()
    workers = psutil.Process(run.pid).children()
    assert len(workers) == 2
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive


def test_a_step_without_any_score_stops_the_run(pool: RewardPool) -> None:
    report = ScoringReport()
    with pytest.raises(RewardError, match=r"none of the 2 samples .*boom, for the prompt 'p'"):
        report.add(score(pool, "raise", "nan"))


def test_each_kind_of_failure_is_said_once(pool: RewardPool) -> None:
    report = ScoringReport()
    first = report.add(score(pool, "raise", "raise", "nan", "fine"))
    assert len(first.messages) == 2
    assert first.metrics() == {"rewards/unscored": 3, "rewards/misbehave/failed": 3}
    again = report.add(score(pool, "raise", "fine"))
    assert again.messages == []
    assert again.metrics() == {"rewards/unscored": 1, "rewards/misbehave/failed": 1}


UNRULY = """
import os, subprocess, sys, time

class Mute(Exception):
    def __str__(self): raise RuntimeError("not even a text")
class Trap:
    def tolist(self): raise ValueError("no list today")

def forks(completions):
    return [1.0 if os.fork() else 99.0]
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
def start_child():
    return subprocess.Popen(SLEEPS).pid
def start_session():
    return subprocess.Popen(SLEEPS, start_new_session=True).pid
def start_orphan():
    start = f"subprocess.Popen({SLEEPS}, stdout=2, start_new_session=True)"
    script = f"import subprocess; print({start}.pid)"
    return int(subprocess.check_output([sys.executable, "-c", script]))
def leaves_a_child(completions):
    what, then = completions[0].split()
    pid = globals()["start_" + what]()
    path = os.path.join(os.path.dirname(__file__), "child")
    with open(path + ".part", "w") as file:
        file.write(str(pid))
    os.rename(path + ".part", path)
    if then == "exit": os._exit(0)
    if then == "return": return [1.0]
    time.sleep(600)
def waits(completions):
    try:
        while True: os.wait()
    except ChildProcessError:
        return [1.0]
def mute(completions): raise Mute()
def trap(completions): return Trap()
def text(completions): return completions[0]
def texts(completions): return list(completions)
"""


def test_a_reward_that_forks_answers_once_a_sample(tmp_path: Path) -> None:
    """Its child's answer would be taken for that of the next sample."""
    (tmp_path / "u.py").write_text(UNRULY)
    with make_pool(tmp_path, "u.py:forks", workers=1) as pool:
        assert [scored.reward for scored in score(pool, *"abcdef")] == [1.0] * 6


ON_LINUX = pytest.param(
    "orphan",
    marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux has orphans adopted"),
)
STARTED = ["child", "session", ON_LINUX]


@pytest.mark.parametrize("then", ["hang", "exit"])
@pytest.mark.parametrize("what", STARTED)
def test_what_a_reward_started_ends_with_its_worker(tmp_path: Path, what: str, then: str) -> None:
    (tmp_path / "u.py").write_text(UNRULY)
    with make_pool(tmp_path, "u.py:leaves_a_child", workers=1, deadline_s=2) as pool:
        [scored] = score(pool, f"{what} {then}")
        assert scored.reward is None
        child = int((tmp_path / "child").read_text())
        wait_until(
            lambda: not psutil.pid_exists(child) or not is_alive(psutil.Process(child)),
            5,
            "the reward's child still runs",
        )


ABANDONED = """
import sys; from pathlib import Path
from roost.config import RewardsConfig
from roost.rewards import RewardPool, load_rewards
from roost.samples import *
c = RewardsConfig.model_validate({"functions": ["u.py:leaves_a_child"]})
pool = RewardPool(load_rewards(c, Path(sys.argv[1])), deadline_s=600, workers=1)
pool.submit(Prompt(0, (1,), "p"), Sample(0, 0, [1], [0.0], [0.0],
    FinishReason.STOP, [0], [TokenSource.MODEL], sys.argv[2]))
pool.drain()
"""


@pytest.mark.parametrize("then", ["hang", "return"])
@pytest.mark.parametrize("what", STARTED)
def test_what_a_reward_started_ends_with_a_killed_run(tmp_path: Path, what: str, then: str) -> None:
    """Whether its worker is busy or waits for the next sample."""
    (tmp_path / "u.py").write_text(UNRULY)
    script = ABANDONED + "import time; time.sleep(600)"
    run = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), f"{what} {then}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    try:
        wait_until((tmp_path / "child").exists, 60, "the reward started nothing")
        child = int((tmp_path / "child").read_text())
        family = psutil.Process(run.pid).children(recursive=True)
        assert len(family) == 3, "keeper, worker and child"
        assert child in [process.pid for process in family]
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not any(map(is_alive, family)), 5, "something of the killed run is left")


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(happened: Callable[[], bool], seconds: float, otherwise: str) -> None:
    give_up = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < give_up, otherwise
        time.sleep(0.05)


def test_a_reward_that_waits_for_all_its_children_has_none_but_its_own(tmp_path: Path) -> None:
    (tmp_path / "u.py").write_text(UNRULY)
    with make_pool(tmp_path, "u.py:waits", workers=1, deadline_s=20) as pool:
        assert score(pool, "x")[0].reward == 1.0


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        ("mute", "raised", "Mute"),
        ("trap", "type", "its result cannot be read: ValueError: no list today"),
        ("text", "type", "it returned a str"),
        ("texts", "type", "it returned str '5'; not a number"),
    ],
)
def test_results_that_are_no_numbers_cost_the_sample_and_not_the_worker(
    tmp_path: Path, function: str, kind: str, message: str
) -> None:
    (tmp_path / "u.py").write_text(UNRULY)
    with make_pool(tmp_path, f"u.py:{function}", workers=1) as pool:
        [failure] = score(pool, "5")[0].failures
    assert (failure.kind, failure.message[: len(message)]) == (kind, message)
