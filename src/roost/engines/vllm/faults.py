"""Faults on the way from a trainer to an engine with weights of its own, made on purpose.

A run never has one of these: the self check and tests put a ``SpoilingPort`` around the real one
and see whether the proof finds what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from roost.engines.vllm.port import Port
from roost.model.policy import Policy
from roost.sync.buckets import Named
from roost.sync.trainer_side import adapter_file, adapter_tensors, base_tensors, infos
from roost.training.adapters import ADAPTER_WEIGHTS

Spoil = Callable[[list[Named]], list[Named]]
"""What becomes of the tensors of a bucket, or of an adapter's file, on their way."""

MOVE = 0.01
"""By how much of its mean size ``move`` changes a weight."""
_FROM_ZERO = 1e-3
"""By how much it changes the weights of a tensor that is all zeros, as half of a new adapter is."""
_INTEGERS = {2: torch.int16, 4: torch.int32}


class SpoilingPort:
    """A port that spoils what is sent while ``spoil`` is set, and is the real one otherwise.

    It says that all has arrived, as a faulty transport would: that is not where a fault may show.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self.spoil: Spoil | None = None

    @classmethod
    def around(cls, port: Port) -> tuple[SpoilingPort, Port]:
        """One around a port, as itself and as what the engine takes."""
        made = cls(port)
        return made, cast(Port, made)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def send(self, tensors: list[Named]) -> tuple[list[str], set[str]]:
        """See ``Port``."""
        if self.spoil is None:
            return self._port.send(tensors)
        left = self.spoil(tensors)
        written = self._port.send(left)[1] if left else self._all_written()
        return [name for name, _ in tensors], written

    def load_adapter(self, folder: Path, version: str) -> None:
        """See ``Port``."""
        if self.spoil is not None:
            file = folder / ADAPTER_WEIGHTS
            save_file(dict(self.spoil(list(load_file(file).items()))), file)
        self._port.load_adapter(folder, version)

    def _all_written(self) -> set[str]:
        return {name for name, info in self._port.tensors().items() if info.tied_to is None}


def dropped(names: Collection[str]) -> Spoil:
    """Some tensors do not arrive."""
    return lambda tensors: [(name, tensor) for name, tensor in tensors if name not in names]


def swapped(one: str, other: str) -> Spoil:
    """Two tensors arrive under each other's name."""
    names = {one: other, other: one}
    return lambda tensors: [(names.get(name, name), tensor) for name, tensor in tensors]


def zeroed(name: str) -> Spoil:
    """A tensor arrives as zeros."""
    return lambda tensors: [(n, torch.zeros_like(t) if n == name else t) for n, t in tensors]


def flipped(name: str) -> Spoil:
    """The lowest bit of one weight has changed."""

    def spoil(tensors: list[Named]) -> list[Named]:
        return [(n, _with_a_bit_flipped(t) if n == name else t) for n, t in tensors]

    return spoil


def replaced(others: Mapping[str, Tensor]) -> Spoil:
    """Other tensors arrive in their place, such as those of the sync before."""
    return lambda tensors: [(name, others.get(name, tensor)) for name, tensor in tensors]


def withheld(tensors: list[Named]) -> list[Named]:
    """Nothing arrives."""
    return []


def travelling(policy: Policy) -> dict[str, Tensor]:
    """The matrices that a sync sends, by the names under which they travel."""
    if policy.is_adapter:
        return adapter_file(policy)
    tensors = base_tensors(policy)
    found = infos(tensors)
    return {n: t for n, t in tensors.items() if t.dim() == 2 and found[n].tied_to is None}


def flip_a_bit(tensor: Tensor) -> None:
    """Change the lowest bit of a tensor's largest value: a second time puts it right again.

    Of the largest, because a kernel may take what is next to zero for zero.
    """
    flat = tensor.detach().view(-1)
    place = int(flat.abs().argmax())
    flat.view(_INTEGERS[flat.element_size()])[place] ^= 1


def _with_a_bit_flipped(tensor: Tensor) -> Tensor:
    spoilt = tensor.detach().clone(memory_format=torch.contiguous_format)
    flip_a_bit(spoilt)
    return spoilt


@contextmanager
def counted_twice(policy: Policy, name: str) -> Iterator[None]:
    """Within it the adapter of a layer is in the base as well, as after a resume from merged
    weights.

    Args:
        policy: With an adapter.
        name: Of the adapted module.
    """
    a, b = adapter_tensors(policy)[name]
    weight = base_tensors(policy)[f"{name}.weight"].detach()
    before = weight.clone()
    weight.add_((b @ a).to(weight.dtype))
    try:
        yield
    finally:
        weight.copy_(before)


@torch.no_grad()
def move(policy: Policy) -> None:
    """Change every trained weight a little, as an update does; the version rises by one."""
    generator = torch.Generator(policy.device).manual_seed(policy.version)
    for parameter in policy.trainable_parameters().values():
        scale = MOVE * float(parameter.abs().mean()) or _FROM_ZERO
        noise = torch.empty_like(parameter).normal_(generator=generator)
        parameter.add_(noise, alpha=scale)
    policy.version += 1
