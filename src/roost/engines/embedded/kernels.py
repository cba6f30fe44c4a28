"""Attention over cache slots in one kernel call, where a GPU has a kernel that is right.

A kernel is chosen by trying it: it must give, on a small case of the layer's own shape, what the
definition gives. One that is not there, does not take the shape, or computes something else is
passed over, and the reason is kept for whoever asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from roost.engines.embedded.cache import LayerShape
from roost.engines.embedded.partial import attention_by_definition

TOLERANCE = 0.02
"""Most that a result in 16 bits may be from the definition's, of values of about 1."""


@dataclass(frozen=True, slots=True)
class SlotQueries:
    """Which queries look at which slot, and at how much of it. All tensors are on the device."""

    ends: Tensor
    """``[slots + 1]`` int32: queries of slot i are those from ``ends[i]`` to ``ends[i + 1]``."""
    longest: int
    """No slot has more queries than this."""
    lengths: Tensor
    """``[slots]`` int32: keys of each slot that its queries see, from the first on."""


class SlotKernel(Protocol):
    """Attention of queries to the first keys of their slots; none sees another slot."""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        ...

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, which: SlotQueries, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output ``[queries, heads, dim]`` and float32 log-sum-exp ``[queries, heads]``.

        Args:
            query: ``[queries, heads, dim]``, slot by slot.
            key: ``[slots, capacity, heads, dim]``, contiguous.
            value: Likewise.
            which: Who sees what.
            scale: Factor on the scores.
        """
        ...


class FlashSlots:
    """FlashAttention as torch carries it, the function that ``varlen_attn`` is built on.

    It is called below that interface because ``seqused_k``, the length of each slot's content, came
    to the interface in torch 2.12 only.
    """

    name = "flash attention"

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, which: SlotQueries, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See ``SlotKernel``."""
        slots, capacity = key.shape[:2]
        starts = torch.arange(slots + 1, device=key.device, dtype=torch.int32) * capacity
        output, lse, *_ = torch.ops.aten._flash_attention_forward(
            query,
            key.view(slots * capacity, *key.shape[2:]),
            value.view(slots * capacity, *value.shape[2:]),
            which.ends,
            starts,
            which.longest,
            capacity,
            0.0,
            False,
            False,
            scale=scale,
            seqused_k=which.lengths,
        )
        return output, lse.transpose(0, 1)  # [heads, queries]: FlashAttention's unpadded layout


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel that decodes a model here."""

    kernel: SlotKernel | None
    """None: attention is computed by definition."""
    reason: str
    """Why it is this one."""


def choose_kernel(
    layers: list[LayerShape],
    dtype: torch.dtype,
    device: torch.device,
    candidates: tuple[SlotKernel, ...] = (FlashSlots(),),
) -> Choice:
    """The first candidate that is right for all layers.

    Args:
        layers: What each layer caches.
        dtype: Working precision.
        device: Where it runs.
        candidates: In the order of preference.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return Choice(None, f"by definition: no kernel computes in {str(dtype)[6:]}")
    if any(layer.key_dim != layer.value_dim for layer in layers):
        return Choice(None, "by definition: keys and values differ in width")
    reasons = []
    for kernel in candidates:
        problem = _problem(kernel, set(layers), dtype, device)
        if problem is None:
            return Choice(kernel, f"{kernel.name}, as exact here as its precision allows")
        reasons.append(f"{kernel.name} {problem}")
    return Choice(None, f"by definition: {'; '.join(reasons)}")


def _problem(
    kernel: SlotKernel, layers: set[LayerShape], dtype: torch.dtype, device: torch.device
) -> str | None:
    """What is wrong with a kernel for one of these shapes; None where it is right for all."""
    for layer in layers:
        try:
            off = distance(kernel, layer, dtype, device)
        # What a kernel that does not take a shape, or is not built in, raises.
        except (RuntimeError, NotImplementedError, TypeError) as error:
            return f"refuses heads of {layer.key_dim}: {str(error).splitlines()[0][:200]}"
        if not off <= TOLERANCE:
            return f"is {off:.2g} off the definition for heads of {layer.key_dim}"
    return None


@torch.inference_mode()
def distance(
    kernel: SlotKernel, layer: LayerShape, dtype: torch.dtype, device: torch.device
) -> float:
    """How far a kernel is from the definition on three slots, one of them without a query."""
    capacity, heads, dim = 96, layer.kv_heads, layer.key_dim
    counts, lengths = (3, 0, 2), (5, 1, 70)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)

    query = random(sum(counts), heads, dim)
    key, value = random(3, capacity, heads, dim), random(3, capacity, heads, dim)
    which = SlotQueries(
        torch.tensor([0, 3, 3, 5], dtype=torch.int32, device=device),
        8,
        torch.tensor(lengths, dtype=torch.int32, device=device),
    )
    output, lse = kernel(query, key, value, which, dim**-0.5)
    off, start = 0.0, 0
    for slot, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        rows = query[start : start + count].transpose(0, 1)[None]
        keys, values = (t[slot, :length].transpose(0, 1)[None] for t in (key, value))
        mask = torch.zeros(1, 1, 1, length, device=device)
        wanted, wanted_lse = attention_by_definition(rows, keys, values, mask, dim**-0.5, None)
        pairs = (
            (output[start : start + count], wanted[0].transpose(0, 1)),
            (lse[start : start + count], wanted_lse[0].transpose(0, 1)),
        )
        for found, right in pairs if count else ():
            gap = (found.float() - right.float()).abs().max()
            off = max(off, float("inf") if not torch.isfinite(gap) else float(gap))
        start += count
    return off
