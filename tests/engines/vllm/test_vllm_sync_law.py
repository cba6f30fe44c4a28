"""Law 5 with the real vLLM: each injected fault is caught by name before anything is sampled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm_support import make_engine, make_policy, move, needs_vllm, prompts, start

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.engine import VllmEngine
from roost.errors import EngineError
from roost.model.policy import Policy
from roost.sync.names import NameMap
from roost.sync.trainer_side import base_tensors, infos

pytestmark = [needs_vllm, pytest.mark.slow]

Named = list[tuple[str, Tensor]]


@pytest.fixture(scope="module")
def full() -> Iterator[Any]:
    yield from start()


@pytest.fixture(scope="module")
def lora() -> Iterator[Any]:
    yield from start(lora=True)


def samples(engine: VllmEngine) -> list[Any]:
    return list(engine.generate(prompts(2), 2, SamplingParams(6), seed=0, step=0))


def in_transit(port: Any, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Named], Named]) -> None:
    """Spoil tensors between the trainer and vLLM, which says that it received what was sent."""
    honest = port.send

    def send(tensors: Named) -> tuple[list[str], set[str]]:
        _, written = honest(spoil(tensors))
        return [name for name, _ in tensors], written

    monkeypatch.setattr(port, "send", send)


K = "model.layers.1.self_attn.k_proj.weight"
V = "model.layers.1.self_attn.v_proj.weight"
DOWN = "model.layers.2.mlp.down_proj.weight"


def drop(tensors: Named) -> Named:
    return [(name, tensor) for name, tensor in tensors if name != DOWN]


def drop_a_part(tensors: Named) -> Named:
    return [(name, tensor) for name, tensor in tensors if name != K]


def swap(tensors: Named) -> Named:
    other = {K: V, V: K}
    return [(other.get(name, name), tensor) for name, tensor in tensors]


def zero(tensors: Named) -> Named:
    return [(n, torch.zeros_like(t) if n == DOWN else t) for n, t in tensors]


def flip(tensors: Named) -> Named:
    """The lowest bit of one weight."""
    spoilt = []
    for name, tensor in tensors:
        if name == DOWN:
            tensor = tensor.clone()
            tensor.view(-1).view(torch.int32)[77] ^= 1
        spoilt.append((name, tensor))
    return spoilt


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (drop, "down_proj.weight was not written"),
        (drop_a_part, "layers.1.self_attn.qkv_proj.weight is not what was sent"),
        (swap, "layers.1.self_attn.qkv_proj.weight is not what was sent"),
        (zero, "layers.2.mlp.down_proj.weight is not what was sent"),
        (flip, "layers.2.mlp.down_proj.weight is not what was sent"),
    ],
)
def test_a_fault_on_the_way_is_caught_by_name(
    spoil: Callable[[Named], Named], says: str, full: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    engine = make_engine(policy, full)
    engine.sync()
    move(policy)
    in_transit(full, monkeypatch, spoil)
    with pytest.raises(EngineError, match=says):
        engine.sync()
    with pytest.raises(EngineError, match="cannot go from"):
        samples(engine)
    monkeypatch.undo()
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


def test_a_sync_that_wrote_nothing_is_caught(full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version rises and the weights do not: what a sleeping engine once did for months."""
    policy = make_policy()
    engine = make_engine(policy, full)
    engine.sync()
    move(policy)
    monkeypatch.setattr(full, "start_update", lambda: None)
    monkeypatch.setattr(full, "send", lambda tensors: ([n for n, _ in tensors], full_names(policy)))
    monkeypatch.setattr(full, "finish_update", full._llm.update_weight_version)
    with pytest.raises(EngineError, match="is not what was sent"):
        engine.sync()


def full_names(policy: Policy) -> set[str]:
    return {name for name, info in engine_infos(policy).items() if info.tied_to is None}


def engine_infos(policy: Policy) -> dict[str, Any]:
    fused = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
    fused |= {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
    found = {}
    for name, info in infos(base_tensors(policy)).items():
        for part, whole in fused.items():
            name = name.replace(f".{part}.", f".{whole}.")
        found[name] = info
    return found


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


def test_a_stale_adapter_is_caught(lora: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(lora=True)
    engine = make_engine(policy, lora)
    engine.sync()
    move(policy, 0.1)

    def load(folder: Path, version: str) -> None:
        lora._llm.update_weight_version(version)

    with monkeypatch.context() as patch:
        patch.setattr(lora, "load_adapter", load)
        with pytest.raises(EngineError, match=r"proj\.0\.[AB] is not what was sent"):
            engine.sync()
    engine.sync()
    assert samples(engine)


@pytest.mark.parametrize("spoil", ["zero", "flip", "swap"])
def test_a_fault_in_the_adapter_is_caught(
    spoil: str, lora: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    policy = make_policy(lora=True)
    engine = make_engine(policy, lora)
    engine.sync()
    move(policy, 0.1)
    honest = lora.load_adapter
    k = "base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight"
    v = k.replace("k_proj", "v_proj")

    def load(folder: Path, version: str) -> None:
        file = folder / "adapter_model.safetensors"
        tensors = load_file(file)
        if spoil == "zero":
            tensors[k].zero_()
        elif spoil == "flip":
            tensors[k].view(-1).view(torch.int32)[5] ^= 1
        else:
            tensors[k], tensors[v] = tensors[v].clone(), tensors[k].clone()
        save_file(tensors, file)
        honest(folder, version)

    monkeypatch.setattr(lora, "load_adapter", load)
    says = r"layers\.1\.self_attn\.qkv_proj\.1\.B is not what was sent"
    with pytest.raises(EngineError, match=says):
        engine.sync()


def test_a_base_weight_changed_is_caught(lora: Any) -> None:
    policy = make_policy(lora=True)
    engine = make_engine(policy, lora)
    engine.sync()
    base_tensors(policy)[DOWN].data.view(-1).view(torch.int32)[0] ^= 1
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
