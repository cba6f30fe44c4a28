"""The most memory that a contender has held, and what a forward keeps for its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import psutil
import torch
from torch import Tensor

from roost.model.policy import Policy
from roost.run.ledger import peak_bytes, resident_peak


class PeakMemory:
    """The most bytes held so far by this process and those it has started.

    On a GPU, what torch's allocator reserved there. On a CPU, the sum of each process's highest
    resident memory: an upper bound where they peak at different times, and the same for all.

    Args:
        device: Where the model is.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._most = 0
        self._others = 0

    def note(self, bytes_seen: float = 0) -> int:
        """Look again; returns the most so far.

        Args:
            bytes_seen: A peak of this process that was measured elsewhere. Roost's ledger begins a
                new measurement with each phase, so what the system says covers the last one only.
        """
        self._most = max(self._most, int(bytes_seen), peak_bytes(self._device))
        if self._device.type == "cpu":
            self._others = max(self._others, _children_bytes())
        return self._most + self._others


def _children_bytes() -> int:
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            total += resident_peak(child.pid)
        except psutil.NoSuchProcess:
            continue  # It ended between the two looks.
    return total


def kept_bytes(policy: Policy, forward: Callable[[], Tensor], layers: int | None = None) -> int:
    """Bytes of the distinct storages that autograd saves in a forward, parameters apart.

    Args:
        policy: Whose parameters are not counted.
        forward: Returns something that holds the graph, so that no storage is given back and
            counted twice.
        layers: Have the model run its first few layers alone.
    """
    own = {p.untyped_storage().data_ptr() for p in policy.module.parameters()}
    saved: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    decoder = policy.decoder
    everything = cast(torch.nn.ModuleList, decoder.layers)
    decoder.layers = everything[:layers]
    decoder.config.num_hidden_layers = len(decoder.layers)  # type: ignore[union-attr]
    try:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            result = forward()
        del result
    finally:
        decoder.layers = everything
        decoder.config.num_hidden_layers = len(everything)  # type: ignore[union-attr]
    return sum(saved.values())
