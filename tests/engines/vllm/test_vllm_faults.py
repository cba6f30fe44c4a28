"""Faults that are made on purpose are what they say, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from roost.config import LoraConfig
from roost.engines.vllm import faults
from roost.engines.vllm.faults import SpoilingPort
from roost.model.policy import Policy
from roost.sync.trainer_side import adapter_tensors, base_tensors
from roost.training.adapters import add_adapter
from support.recorded_port import RecordedPort
from support.small_models import build

DTYPES = (torch.float32, torch.bfloat16)


def named() -> list[tuple[str, torch.Tensor]]:
    return [("a", torch.tensor([[1.0, -4.0]])), ("b", torch.tensor([[2.0, 3.0]]))]


def test_each_spoils_what_it_names_and_nothing_else() -> None:
    (_, a), (_, b) = named()
    assert [name for name, _ in faults.dropped(["a"])(named())] == ["b"]
    assert dict(faults.swapped("a", "b")(named()))["b"].equal(a)
    assert dict(faults.zeroed("a")(named()))["a"].equal(torch.zeros(1, 2))
    assert dict(faults.replaced({"a": b})(named()))["a"].equal(b)
    assert faults.withheld(named()) == []
    flipped = dict(faults.flipped("a")(named()))["a"]
    assert flipped[0, 0] == 1.0
    assert 0 < abs(float(flipped[0, 1]) + 4.0) < 1e-6
    for spoil in (faults.zeroed("a"), faults.replaced({"a": b}), faults.flipped("a")):
        original = named()
        assert dict(spoil(original))["b"].equal(b)
        assert dict(original)["a"].equal(a), "the trainer's own tensor is not touched"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_flipped_bit_is_one_and_flips_back(dtype: torch.dtype) -> None:
    tensor = torch.randn(5, 7).to(dtype)
    before = tensor.clone()
    faults.flip_a_bit(tensor)
    assert int((tensor != before).sum()) == 1
    faults.flip_a_bit(tensor)
    assert tensor.equal(before)


def test_what_is_spoilt_is_said_to_have_arrived() -> None:
    policy = Policy(build("llama"))
    port, seen = SpoilingPort.around(RecordedPort(policy))
    tensors = list(base_tensors(policy).items())[:2]
    names = [name for name, _ in tensors]
    assert seen.send(tensors) == (names, set(names))
    port.spoil = faults.dropped(names[:1])
    assert seen.send(tensors) == (names, {names[1]})
    port.spoil = faults.withheld
    received, written = seen.send(tensors)
    assert (received, names[0] in written) == (names, True)
    port.spoil = None
    assert seen.version() == "default"


def test_an_adapter_is_spoilt_in_its_file(tmp_path: Path) -> None:
    class Slot(RecordedPort):
        def load_adapter(self, folder: Path, version: str) -> None:
            self.loaded = load_file(folder / "adapter_model.safetensors"), version

    slot = Slot(Policy(build("llama")))
    port, seen = SpoilingPort.around(slot)
    save_file(dict(named()), tmp_path / "adapter_model.safetensors")
    port.spoil = faults.zeroed("b")
    seen.load_adapter(tmp_path, "3")
    tensors, version = slot.loaded
    assert version == "3"
    assert tensors["a"].equal(named()[0][1])
    assert not tensors["b"].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_move_changes_every_matrix_a_little_and_the_version(
    method: str, dtype: torch.dtype
) -> None:
    module: Any = build("llama", dtype=dtype)
    if method == "lora":
        module = add_adapter(module, LoraConfig(rank=4), seed=0)
    policy = Policy(module)
    trained = policy.trainable_parameters()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    faults.move(policy)
    assert policy.version == 1
    for name, parameter in module.named_parameters():
        changed = float((parameter != before[name]).float().mean())
        if name not in trained:
            assert changed == 0.0, name
        elif parameter.dim() == 2:
            assert changed > 0.5, name
            assert float((parameter - before[name]).detach().abs().max()) < 0.05, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_adapter_is_counted_twice_for_a_while(dtype: torch.dtype) -> None:
    policy = Policy(add_adapter(build("llama", dtype=dtype), LoraConfig(rank=4), seed=0))
    faults.move(policy)
    name = next(iter(adapter_tensors(policy)))
    a, b = adapter_tensors(policy)[name]
    weight = base_tensors(policy)[f"{name}.weight"]
    before = weight.detach().clone()
    with faults.counted_twice(policy, name):
        merged = before.double() + b.double() @ a.double()
        assert not weight.equal(before)
        assert torch.allclose(weight.double(), merged, atol=2e-3 if dtype != DTYPES[0] else 1e-6)
    assert weight.equal(before)


def test_what_travels_is_all_matrices_once_or_the_adapter() -> None:
    full = Policy(build("llama"))
    names = faults.travelling(full)
    assert all(tensor.dim() == 2 for tensor in names.values())
    assert len({id(tensor) for tensor in names.values()}) == len(names)
    adapted = Policy(add_adapter(build("llama"), LoraConfig(rank=4), seed=0))
    assert all(".lora_" in name for name in faults.travelling(adapted))
