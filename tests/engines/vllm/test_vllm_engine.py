"""The engine against a recorded one: the order of its calls, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roost.engines.protocol import SampleKey, SamplingParams
from roost.engines.vllm.engine import VllmEngine, stream_seed
from roost.engines.vllm.state import State
from roost.errors import EngineError
from roost.model.policy import Policy
from roost.samples import FinishReason, Prompt
from support.recorded_port import RecordedPort
from support.small_models import build

PROMPTS = [Prompt(0, (5, 9, 33), "a"), Prompt(7, (17, 4), "b")]


def make(level: int = 0) -> tuple[VllmEngine, RecordedPort]:
    policy = Policy(build("llama"))
    port = RecordedPort(policy)
    engine = VllmEngine(policy, None, port, probe=[5, 6, 7], cache_bytes=1, sleep_level=level)
    return engine, port


def samples(engine: VllmEngine, generations: int = 3, **keys: int) -> list[Any]:
    keys = {"seed": 1, "step": 2} | keys
    return list(engine.generate(PROMPTS, generations, SamplingParams(4), **keys))  # type: ignore[arg-type]


def update(engine: VllmEngine) -> None:
    """What an optimizer step does."""
    with torch.no_grad():
        for parameter in engine.policy.trainable_parameters().values():
            parameter.add_(0.01)
    engine.policy.version += 1


def test_it_samples_only_after_a_sync() -> None:
    engine, port = make()
    assert engine.outdated
    with pytest.raises(EngineError, match="'awake with weights that are not the policy's' to 'sam"):
        samples(engine)
    engine.sync()
    assert not engine.outdated
    assert engine.sync() == {}, "a second sync of the same version has nothing to do"
    assert len(samples(engine)) == 6
    assert port.calls == ["start_update", "finish_update 0", "submit 6"]


def test_a_skipped_sync_is_refused_by_version() -> None:
    engine, _ = make()
    engine.sync()
    update(engine)
    assert engine.outdated
    with pytest.raises(EngineError, match="version '0', the policy is at version 1.*stale"):
        samples(engine)
    engine.sync()
    assert {version for s in samples(engine) for version in s.policy_versions} == {1}


def test_every_sample_comes_once_with_its_own_stream() -> None:
    engine, _ = make()
    engine.sync()
    found = {(s.prompt_id, s.index): s for s in samples(engine)}
    assert set(found) == {(p.id, i) for p in PROMPTS for i in range(3)}
    assert all(s.finish_reason is FinishReason.STOP for s in found.values())
    assert found[7, 2].token_ids == [stream_seed(SampleKey(1, 2, 7, 2)) % 50]
    keys = [SampleKey(a, b, c, d) for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)]
    assert len({stream_seed(key) for key in keys}) == len(keys)
    assert all(0 <= stream_seed(key) < 2**63 for key in keys)


def test_samples_given_up_are_aborted_and_the_engine_goes_on() -> None:
    engine, port = make()
    engine.sync()
    stream = engine.generate(PROMPTS, 3, SamplingParams(4), seed=0, step=0)
    next(stream)
    assert engine.state is State.GENERATING
    with pytest.raises(EngineError, match="from 'sampling'"):
        engine.sleep()
    stream.close()  # type: ignore[attr-defined]
    assert port.calls[-1] == "abort 5"
    assert not port.running
    assert len(samples(engine)) == 6


@pytest.mark.parametrize("level", [1, 2])
def test_it_wakes_weights_then_syncs_then_wakes_the_cache(level: int) -> None:
    engine, port = make(level)
    engine.sync()
    samples(engine)
    engine.sleep()
    with pytest.raises(EngineError, match="from 'asleep' to 'sampling'"):
        samples(engine)
    update(engine)
    port.calls.clear()
    engine.sync()
    assert port.calls == ["wake weights", "start_update", "finish_update 1", "wake kv_cache"]
    assert len(samples(engine)) == 6


def test_a_wake_without_a_new_version_syncs_all_the_same() -> None:
    """An engine that slept may have lost its weights, whatever version they were."""
    engine, _ = make(2)
    engine.sync()
    engine.sleep()
    assert engine.outdated
    engine.sync()
    assert len(samples(engine)) == 6


def test_a_failed_sync_leaves_it_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, port = make()
    honest = port.send
    monkeypatch.setattr(port, "send", lambda tensors: honest(tensors[1:]))
    with pytest.raises(EngineError, match="the sync is partial.*\n.*embed_tokens.weight was not s"):
        engine.sync()
    with pytest.raises(EngineError):
        samples(engine)
    monkeypatch.setattr(port, "send", honest)
    engine.sync()
    assert len(samples(engine)) == 6


def test_a_probe_that_differs_leaves_it_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, port = make()
    honest = port.score
    monkeypatch.setattr(port, "score", lambda ids: [value - 0.1 for value in honest(ids)])
    with pytest.raises(EngineError, match="scores a probe 0.1 nats a token away"):
        engine.sync()
    assert engine.state is State.STALE


def test_samples_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, port = make()
    engine.sync()
    honest = port.step

    def step() -> list[Any]:
        port.label = "9"
        return honest()

    monkeypatch.setattr(port, "step", step)
    with pytest.raises(EngineError, match="version '9', the policy is at version 0"):
        samples(engine)


def test_closing_releases_the_engine() -> None:
    engine, port = make()
    engine.close()
    assert port.calls == ["close"]
