"""Keys and values of prompts (once a group) and of completions, in slots that stay packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores for a token."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        """Numbers a token."""
        return self.kv_heads * (self.key_dim + self.value_dim)


def bytes_per_token(layers: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """Cache bytes of one token: keys and values of all layers."""
    return dtype.itemsize * sum(layer.elements for layer in layers)


class SlotCache:
    """Keys and values of sequences, a slot each: per layer ``[slots, kv_heads, capacity, dim]``.

    Used slots are always the first ones, so that attention reads them through views; the caller
    moves the last slot into a hole.

    Args:
        layers: The shapes of the layers.
        slots: How many sequences fit.
        capacity: Tokens that each slot can hold; as ``roost.model.flash.padded`` gives it.
        dtype: Working precision.
        device: Where it lives.
        token_major: Whether a token's heads lie side by side, as kernels of GPUs read them; else a
            head's tokens do. The shape is the same.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        slots: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        token_major: bool = False,
    ) -> None:
        def store(heads: int, dim: int) -> Tensor:
            if token_major:
                return _zeros((slots, capacity, heads, dim), dtype, device).transpose(1, 2)
            return _zeros((slots, heads, capacity, dim), dtype, device)

        self.slots = slots
        self.capacity = capacity
        self.keys = [store(layer.kv_heads, layer.key_dim) for layer in layers]
        self.values = [store(layer.kv_heads, layer.value_dim) for layer in layers]

    @property
    def nbytes(self) -> int:
        """Bytes that the cache can come to hold."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of one slot over another."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, whose pages the CPU provides on first use.

    Zeros and not uninitialised memory: attention multiplies masked positions by a weight of 0,
    and 0 times a stray NaN is NaN. ``torch.zeros`` writes every page; NumPy asks the system for
    pages that are zero already.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)
