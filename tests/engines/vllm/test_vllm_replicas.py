"""Servers of one ``roost serve``: one that dies is started again, and the others go on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from vllm_support import CACHE_BYTES, needs_vllm

from roost.engines.vllm.member import Member
from roost.engines.vllm.server import replicas
from roost.engines.vllm.server.addresses import Address, read_addresses
from roost.engines.vllm.server.replicas import RESTARTS, Replicas
from roost.errors import EngineError
from roost.run.metrics import read_metrics
from support.tiny_runs import train_tiny


class FakeProcess:
    """A server process that does what the test says."""

    count = 0

    def __init__(self) -> None:
        FakeProcess.count += 1
        self.url = f"http://127.0.0.1:{FakeProcess.count}"
        self.loaded = self.closed = False
        self.alive = True

    def ready(self) -> Address | None:
        if not self.alive:
            raise self.ending()
        return Address(self.url) if self.loaded else None

    def ending(self) -> EngineError:
        return EngineError(f"{self.url} ended:\n  out of memory")

    def close(self) -> None:
        self.alive, self.closed = False, True

    kill = close

    def stop(self) -> None: ...


class Bench:
    """Two servers, and what is told of them."""

    def __init__(self) -> None:
        self.made: list[FakeProcess] = []
        self.told: list[list[str]] = []
        self.said: list[str] = []
        starts: list[Callable[[], Any]] = [self._start, self._start]
        self.replicas = Replicas(starts, self._tell, self.said.append)

    def _start(self) -> FakeProcess:
        self.made.append(FakeProcess())
        return self.made[-1]

    def _tell(self, addresses: list[Address]) -> None:
        self.told.append([address.url for address in addresses])

    def load(self) -> None:
        for process in self.made:
            process.loaded = True
        self.replicas.look()

    def die(self, number: int) -> None:
        self.made[number].alive = False
        self.replicas.look()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_addresses_are_told_once_all_answer(bench: Bench) -> None:
    bench.made[0].loaded = True
    bench.replicas.look()
    assert bench.told == []
    bench.load()
    bench.replicas.look()
    assert bench.told == [[process.url for process in bench.made]]


def test_one_that_dies_is_started_again_and_told_anew(bench: Bench) -> None:
    bench.load()
    bench.die(0)
    first, second, third = bench.made
    assert second.alive
    assert first.closed
    assert len(bench.told) == 1, "the other one's address holds meanwhile"
    assert bench.said == [f"{first.url} ended:\n  out of memory\nstarting it again"]
    bench.load()
    assert bench.told[1] == [third.url, second.url]


def test_one_that_cannot_be_started_ends_all(bench: Bench) -> None:
    with pytest.raises(EngineError, match="ended:\n  out of memory"):
        bench.die(1)
    bench.replicas.close()
    assert all(process.closed for process in bench.made)


@pytest.mark.parametrize("loaded", [True, False])
def test_one_that_dies_again_and_again_ends_all(loaded: bool, bench: Bench) -> None:
    bench.load()
    for _ in range(RESTARTS):
        bench.die(-1 if len(bench.made) > 2 else 1)
        if loaded:
            bench.load()
    with pytest.raises(EngineError, match=f"started again {RESTARTS} times, and each time"):
        bench.die(-1)


def test_one_that_has_served_for_long_may_die_as_often_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.load()
    monkeypatch.setattr(replicas, "STEADY_S", -1.0)
    for _ in range(RESTARTS + 2):
        bench.die(-1 if len(bench.made) > 2 else 1)
        bench.load()
    assert len(bench.told) == RESTARTS + 3


# -- the real vLLM


@pytest.fixture
def served(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``roost serve --replicas 2``, listening everywhere, as a person starts it."""
    (tmp_path / "secret").write_text("sesame")
    command = [
        *(sys.executable, "-m", "roost", "serve", "tiny", "--replicas", "2", "--device", "cpu"),
        *("--max-tokens", "128", "--cache-bytes", str(CACHE_BYTES), "--max-sequences", "8"),
        *("--host", "0.0.0.0", "--advertise", "127.0.0.1", "--token-file", "secret"),
        *("--address-file", "servers.json"),
    ]
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said, (tmp_path / "log.txt").read_text()
        urls = json.loads(said)["servers"]
        assert urls == [address.url for address in read_addresses(str(tmp_path / "servers.json"))]
        assert all(url.startswith("http://127.0.0.1:") for url in urls), "as it is advertised"
        yield process
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()


@needs_vllm
@pytest.mark.slow
def test_a_run_shares_its_samples_between_them_and_outlives_one(
    served: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: Counter[int] = Counter()
    victim, *_ = psutil.Process(served.pid).children()
    before = read_addresses(str(tmp_path / "servers.json"))
    honest = Member.proved_useful

    def proved_useful(member: Member) -> None:
        honest(member)
        finished[member.port.address.url] += 1
        if len(finished) == 2 and finished.total() >= 40 and victim.is_running():
            victim.kill()

    monkeypatch.setattr(Member, "proved_useful", proved_useful)
    servers = {"engine": "vllm", "mode": "server", "servers": ["servers.json"]}
    sections = {"rollout": servers, "train": {"steps": 6}, "eval": {"prompts": 0}}

    rows = read_metrics(train_tiny(tmp_path / "run", tmp_path, sections).folder.metrics)

    assert len(rows) == 6
    assert rows[0]["servers/synced"] == 2
    assert set(finished) >= {address.url for address in before}, "both have made samples"
    assert sum(row["servers/lost"] for row in rows) >= 1
    assert max(row["step_time"] for row in rows) < 20, "a server that is killed costs seconds"

    wait_for(lambda: read_addresses(str(tmp_path / "servers.json")) != before)
    rows = read_metrics(train_tiny(tmp_path / "again", tmp_path, sections).folder.metrics)
    assert {row["servers/synced"] for row in rows} == {2}, "it was started again"


def wait_for(there: Callable[[], bool], deadline_s: float = 90.0) -> None:
    end = time.monotonic() + deadline_s
    while not there():
        assert time.monotonic() < end
        time.sleep(0.1)
