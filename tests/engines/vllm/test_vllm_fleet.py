"""Several servers as one engine, against recorded engines behind the real service and client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.client import RemotePort, ServerGone
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.fleet import ServerEngine
from roost.engines.vllm.member import Member
from roost.engines.vllm.port import Request
from roost.engines.vllm.server.addresses import Address
from roost.errors import EngineError
from roost.model.policy import Policy
from roost.samples import Prompt
from support.served_port import ServedPort, SlowPort
from support.small_models import build

PROMPTS = [Prompt(0, (5, 9, 33), "a"), Prompt(7, (17, 4), "b"), Prompt(8, (6,), "c")]


class Spot:
    """A place whose server the test can take away and bring back."""

    def __init__(self, served: ServedPort | None) -> None:
        self.served = served

    def address(self) -> Address:
        if self.served is None:
            raise ServerGone("no server here")
        return self.served.address

    def lost(self) -> None: ...

    def proved_useful(self) -> None: ...

    def close(self) -> None:
        if self.served is not None:
            self.served.close()


class Fleet:
    """An engine over recorded servers."""

    def __init__(self, *times: float, patience_s: float = 5.0) -> None:
        self.policy = Policy(build("llama"))
        self.ports = [SlowPort(self.policy, sample_s) for sample_s in times]
        self.spots = [Spot(ServedPort(port)) for port in self.ports]
        members = [Member(spot, self.make_engine) for spot in self.spots]
        self.engine = ServerEngine(self.policy, None, members, patience_s=patience_s)

    def make_engine(self, port: RemotePort) -> VllmEngine:
        return VllmEngine(self.policy, None, port, probe=[5, 6, 7], cache_bytes=7)

    def stream(self, generations: int = 3, prompts: list[Prompt] = PROMPTS) -> Iterator[Any]:
        return self.engine.generate(prompts, generations, SamplingParams(4), seed=1, step=2)

    def update(self) -> None:
        with torch.no_grad():
            for parameter in self.policy.trainable_parameters().values():
                parameter.add_(0.01)
        self.policy.version += 1

    def die(self, number: int) -> None:
        served, self.spots[number].served = self.spots[number].served, None
        assert served is not None
        served.die()

    def come_back(self, number: int) -> SlowPort:
        port = SlowPort(self.policy)
        self.spots[number].served = ServedPort(port)
        return port


@pytest.fixture
def fleets() -> Iterator[list[Fleet]]:
    made: list[Fleet] = []
    yield made
    for fleet in made:
        fleet.engine.close()


def keys(samples: list[Any]) -> set[tuple[int, int]]:
    return {(sample.prompt_id, sample.index) for sample in samples}


ALL = {(p.id, i) for p in PROMPTS for i in range(3)}


def test_servers_are_synced_and_share_the_samples(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.01, 0.01))
    metrics = fleet.engine.sync()
    assert metrics["servers/synced"] == 2
    samples = list(fleet.stream())
    assert len(samples) == 9
    assert keys(samples) == ALL
    assert all(port.calls[:2] == ["start_update", "finish_update 0"] for port in fleet.ports)
    assert all(port.made for port in fleet.ports)


def test_the_faster_server_does_more(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.005, 0.1))
    fleet.engine.sync()
    assert len(list(fleet.stream(20))) == 60
    fast, slow = (port.made for port in fleet.ports)
    assert fast > 3 * slow


def test_old_weights_are_never_sampled_from(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.0))
    fleet.engine.sync()
    fleet.update()
    assert fleet.engine.outdated
    with pytest.raises(EngineError, match="version '0', the policy is at version 1"):
        list(fleet.stream())
    fleet.engine.sync()
    assert {v for sample in fleet.stream() for v in sample.policy_versions} == {1}


def test_a_server_that_dies_loses_no_sample(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.05, 0.05))
    fleet.engine.sync()
    stream = fleet.stream()
    samples = [next(stream)]
    fleet.die(0)
    start = time.monotonic()
    samples += stream
    assert time.monotonic() - start < 3
    assert len(samples) == 9
    assert keys(samples) == ALL
    fleet.update()
    metrics = fleet.engine.sync()
    assert metrics["servers/lost"] >= 1
    assert metrics["servers/asked_again"] >= 1
    assert metrics["servers/synced"] == 1


def test_the_only_server_comes_back_with_current_weights(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.02))
    fleet.engine.sync()
    fleet.update()
    fleet.engine.sync()
    stream = fleet.stream()
    samples = [next(stream)]
    fleet.die(0)
    port = fleet.come_back(0)
    samples += stream
    assert keys(samples) == ALL
    assert port.calls[:2] == ["start_update", "finish_update 1"]
    assert {v for sample in samples for v in sample.policy_versions} == {1}


def test_samples_keep_the_version_that_was_synced_while_the_policy_is_trained(
    fleets: list[Fleet],
) -> None:
    fleets.append(fleet := Fleet(0.02, 0.02))
    fleet.engine.sync()
    stream = fleet.stream()
    fleet.update()  # after the call, before its first sample
    samples = [next(stream)]
    fleet.update()
    samples += stream
    assert keys(samples) == ALL
    assert {v for sample in samples for v in sample.policy_versions} == {0}
    assert all(port.calls.count("start_update") == 1 for port in fleet.ports)


def test_a_server_that_comes_back_waits_for_the_update_and_takes_its_weights(
    fleets: list[Fleet],
) -> None:
    fleets.append(fleet := Fleet(0.02))
    fleet.engine.sync()
    stream = fleet.stream()
    samples = [next(stream)]
    with fleet.policy.lock:
        fleet.die(0)
        port = fleet.come_back(0)
        time.sleep(1.0)
        assert port.calls == [], "it was synced while the policy moved"
        fleet.update()
    samples += stream
    assert keys(samples) == ALL
    assert port.calls[:2] == ["start_update", "finish_update 1"]
    assert [sample.policy_versions[0] for sample in samples] == sorted(
        sample.policy_versions[0] for sample in samples
    )
    assert samples[-1].policy_versions[0] == 1


def test_no_server_is_waited_for_without_end(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.02, patience_s=0.6))
    fleet.engine.sync()
    stream = fleet.stream()
    next(stream)
    fleet.die(0)
    with pytest.raises(EngineError, match=r"no server has finished.*server 0 does not answer"):
        list(stream)


def test_a_bad_request_costs_its_own_samples(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.0))
    fleet.engine.sync()
    samples = list(fleet.stream(2, [Prompt(1, (13,), "bad"), *PROMPTS]))
    assert keys(samples) == {(p.id, i) for p in PROMPTS for i in range(2)}
    fleet.update()
    assert fleet.engine.sync()["servers/refused"] == 2
    with pytest.raises(EngineError, match="refused every request"):
        list(fleet.stream(2, [Prompt(1, (13,), "bad")]))


def test_a_stream_given_up_leaves_nothing_running(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.02))
    fleet.engine.sync()
    stream = fleet.stream()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not fleet.ports[0].running
    assert len(list(fleet.stream())) == 9


def test_a_failed_proof_stops_the_run(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.0))
    honest = fleet.ports[0].send
    fleet.ports[0].send = lambda tensors: honest(tensors[1:])  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="the sync is partial"):
        fleet.engine.sync()
    with pytest.raises(EngineError, match="version 'none', the policy is at version 0"):
        list(fleet.stream())


def test_in_doubt_each_server_is_compared_whole_once(
    fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.engines.vllm.engine.CPU_PROOF_BYTES", 1)
    fleets.append(fleet := Fleet(0.0, 0.0))
    compared = []
    for doubted in (True, False, True, False):
        if doubted:
            fleet.engine.doubt()
        compared.append(fleet.engine.sync()["sync/tensors_compared"])
        fleet.update()
    whole = 2 * len(fleet.ports[0].tensors())
    assert compared == [whole, 2, whole, 2]


def test_a_second_trainer_takes_over_and_the_first_is_told(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.0))
    fleet.engine.sync()
    address = fleet.spots[0].address()
    other = RemotePort(address)
    with pytest.raises(EngineError, match="another trainer has attached"):
        list(fleet.stream())
    with pytest.raises(EngineError, match="version none, holds none that are complete"):
        other.submit([Request([5], 0)], SamplingParams(4))
    other.close()


def test_a_server_refuses_a_version_that_it_does_not_hold(fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(0.0))
    fleet.engine.sync()
    port = fleet.engine._members[0].port
    port._label = "3"
    with pytest.raises(EngineError, match="asked for weights of version 3, holds 0"):
        port.submit([Request([5], 0)], SamplingParams(4))
    port.start_update()
    port._label = "0"
    with pytest.raises(EngineError, match="holds none that are complete"):
        port.submit([Request([5], 0)], SamplingParams(4))


@pytest.mark.parametrize("token", [None, "wrong", "sesam\u00e9"])
def test_a_wrong_token_is_refused(token: str | None) -> None:
    served = ServedPort(SlowPort(Policy(build("llama"))), token="sesame")
    try:
        with pytest.raises(EngineError, match=r"wrong or missing token.*rollout.token_file"):
            RemotePort(replace(served.address, token=token))
        RemotePort(served.address).close()
    finally:
        served.close()


def test_weights_travel_in_the_request_where_no_memory_is_shared() -> None:
    policy = Policy(build("llama"))
    served = ServedPort(SlowPort(policy))
    try:
        port = RemotePort(served.address)
        assert port._folder is not None
        port._folder = None
        engine = VllmEngine(policy, None, port, probe=[5, 6, 7], cache_bytes=7)
        assert engine.sync()["sync/bytes"] > 0
        engine.close()
    finally:
        served.close()


def test_a_bucket_of_a_killed_trainer_goes_when_the_next_attaches() -> None:
    served = ServedPort(SlowPort(Policy(build("llama"))))
    try:
        first = RemotePort(served.address)
        assert first._folder is not None
        left = first._folder / "bucket-0123456789abcdef"
        left.write_bytes(b"half of it")
        first.close()
        RemotePort(served.address).close()
        assert not left.exists()
    finally:
        served.close()
    assert not left.parent.exists()


def test_a_server_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port = SlowPort(Policy(build("llama")))
    served = ServedPort(port)
    try:
        remote = RemotePort(served.address, call_s=0.2)
        monkeypatch.setattr(port, "start_update", lambda: time.sleep(1.0))
        with pytest.raises(ServerGone, match=r"vLLM server http://.*start_update.*in time"):
            remote.start_update()
        remote.close()
    finally:
        served.close()


def test_nobody_at_an_address_is_said() -> None:
    served = ServedPort(SlowPort(Policy(build("llama"))))
    served.die()
    with pytest.raises(ServerGone, match="broke off at attach: ConnectionRefused"):
        RemotePort(served.address)
