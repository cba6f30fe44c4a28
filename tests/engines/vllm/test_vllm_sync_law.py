"""Law 5 with the real vLLM: each injected fault is caught by name before anything is sampled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from vllm_support import make_engine, make_policy, move, needs_vllm, prompts, start

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.faults import (
    Spoil,
    SpoilingPort,
    dropped,
    flip_a_bit,
    flipped,
    replaced,
    swapped,
    withheld,
    zeroed,
)
from roost.errors import EngineError, SyncError
from roost.sync.names import NameMap
from roost.sync.trainer_side import adapter_file, base_tensors, infos

pytestmark = [needs_vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def full() -> Iterator[Any]:
    yield from start()


@pytest.fixture(scope="module")
def lora() -> Iterator[Any]:
    yield from start(lora=True)


def samples(engine: VllmEngine) -> list[Any]:
    return list(engine.generate(prompts(2), 2, SamplingParams(6), seed=0, step=0))


K = "model.layers.1.self_attn.k_proj.weight"
V = "model.layers.1.self_attn.v_proj.weight"
DOWN = "model.layers.2.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(dropped([DOWN]), "down_proj.weight was not written", id="drop"),
        pytest.param(dropped([K]), "1.self_attn.qkv_proj.weight is not what", id="drop_a_part"),
        pytest.param(swapped(K, V), "1.self_attn.qkv_proj.weight is not what", id="swap"),
        pytest.param(zeroed(DOWN), "2.mlp.down_proj.weight is not what was sent", id="zero"),
        pytest.param(flipped(DOWN), "2.mlp.down_proj.weight is not what was sent", id="flip"),
    ],
)
def test_a_fault_on_the_way_is_caught_by_name(spoil: Spoil, says: str, full: Any) -> None:
    policy = make_policy()
    spoiling, port = SpoilingPort.around(full)
    engine = make_engine(policy, port)
    engine.sync()
    move(policy)
    spoiling.spoil = spoil
    with pytest.raises(SyncError, match=says):
        engine.sync()
    with pytest.raises(EngineError, match="cannot go from"):
        samples(engine)
    spoiling.spoil = None
    engine.sync()
    assert samples(engine)


def test_a_tensor_that_the_trainer_leaves_out_is_caught(full: Any) -> None:
    policy = make_policy()
    engine = make_engine(policy, full)
    engine._weights.names.sources.remove(K)
    engine._weights.names.written.discard("model.layers.1.self_attn.qkv_proj.weight")
    move(policy)
    with pytest.raises(EngineError, match="qkv_proj.weight is not what was sent"):
        engine.sync()


def test_a_skipped_sync_is_caught(full: Any) -> None:
    policy = make_policy()
    engine = make_engine(policy, full)
    engine.sync()
    move(policy)
    with pytest.raises(EngineError, match="version '0', the policy is at version 1"):
        samples(engine)


def test_a_sync_that_wrote_nothing_is_caught(full: Any) -> None:
    """The version rises and the weights do not: what a sleeping engine once did for months."""
    policy = make_policy()
    spoiling, port = SpoilingPort.around(full)
    engine = make_engine(policy, port)
    engine.sync()
    move(policy)
    spoiling.spoil = withheld
    with pytest.raises(SyncError, match="is not what was sent"):
        engine.sync()


def test_the_tied_head_is_synced_too(full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU vLLM keeps a packed copy of a tied head, which its reloading forgets."""
    from roost.engines.vllm import worker_side

    policy = make_policy()
    engine = make_engine(policy, full)
    engine.sync()
    move(policy)
    with monkeypatch.context() as patch:
        patch.setattr(worker_side, "_repack_tied_head", lambda model: None)
        with pytest.raises(EngineError, match=r"lm_head.weight is not what was sent"):
            engine.sync()
    engine.sync()


def test_what_is_read_back_is_what_vllm_says_it_holds(full: Any) -> None:
    """vLLM's own checksums of the tensors that it has not repacked, against the trainer's bytes."""
    policy = make_policy()
    move(policy)
    make_engine(policy, full).sync()
    tensors = base_tensors(policy)
    names = NameMap(infos(tensors), full.tensors(), full.fused())
    (said,) = full._llm.collective_rpc("compute_weight_checksums")
    held = {name.rpartition(":")[2]: checksum for name, checksum in said.items()}
    empty = hashlib.sha256().hexdigest()
    compared = 0
    for name, target in names.targets.items():
        if held.get(name, empty) != empty:
            expected = target.expected(tensors).numpy().tobytes()
            assert held[name] == hashlib.sha256(expected).hexdigest()
            compared += 1
    assert compared == 8


K_B = "base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight"
V_B = K_B.replace("k_proj", "v_proj")
OF_K = r"layers\.1\.self_attn\.qkv_proj\.1\.B is not what was sent"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(zeroed(K_B), OF_K, id="zero"),
        pytest.param(flipped(K_B), OF_K, id="flip"),
        pytest.param(swapped(K_B, V_B), OF_K, id="swap"),
        pytest.param(None, r"proj\.0\.[AB] is not what was sent", id="stale"),
    ],
)
def test_a_fault_in_the_adapter_is_caught(spoil: Spoil | None, says: str, lora: Any) -> None:
    policy = make_policy(lora=True)
    spoiling, port = SpoilingPort.around(lora)
    engine = make_engine(policy, port)
    engine.sync()
    before = {name: tensor.clone() for name, tensor in adapter_file(policy).items()}
    move(policy, 0.1)
    spoiling.spoil = spoil or replaced(before)
    with pytest.raises(SyncError, match=says):
        engine.sync()
    spoiling.spoil = None
    engine.sync()
    assert samples(engine)


def test_a_base_weight_changed_is_caught(lora: Any) -> None:
    policy = make_policy(lora=True)
    engine = make_engine(policy, lora)
    engine.sync()
    flip_a_bit(base_tensors(policy)[DOWN])
    move(policy)
    with pytest.raises(EngineError, match="layers.2.mlp.down_proj.weight is not what was sent"):
        engine.sync()


def test_an_adapter_counted_twice_is_caught(lora: Any) -> None:
    """A resume whose base has the adapter merged into it, and the adapter on top."""
    policy = make_policy(lora=True)
    adapted: Any = policy.module
    adapted.merge_adapter()
    adapted.unmerge_adapter = lambda: None
    engine = make_engine(policy, lora)
    with pytest.raises(EngineError, match="proj.weight is not what was sent"):
        engine.sync()


def test_the_base_of_an_adapter_is_never_sent(lora: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(lora=True)
    engine = make_engine(policy, lora)
    sent: list[Any] = []
    monkeypatch.setattr(lora, "send", sent.append)
    metrics = engine.sync()
    before = {name: tensor.clone() for name, tensor in base_tensors(policy).items()}
    move(policy)
    engine.sync()
    assert not sent
    trained = sum(p.nbytes for p in policy.trainable_parameters().values())
    assert metrics["sync/bytes"] == trained
    assert all(torch.equal(before[name], t) for name, t in base_tensors(policy).items())
