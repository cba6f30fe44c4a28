"""A pack's attention through torch's variable-length kernel on GPUs.

Keys and values are gathered into rows: of each prompt its own, of each completion its prompt's and
its own. Query and key lengths differ and are aligned at the end, which is how the kernel reads a
causal window of ``(-1, 0)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from roost.errors import ModelError
from roost.model.parts import Segment, prompt_span

MODULE = "torch.nn.attention.varlen"
"""Where torch has it, from 2.10 on."""


@dataclass(frozen=True, slots=True)
class VarlenIndex:
    """Where each row's queries and keys are."""

    keys: Tensor
    """``[total keys]`` int64: indices into the keys, row after row."""
    query_ends: Tensor
    """``[rows + 1]`` int32: cumulative query counts."""
    key_ends: Tensor
    """``[rows + 1]`` int32: cumulative key counts."""
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, segments: Sequence[Segment], device: torch.device, prefix: int = 0) -> VarlenIndex:
        """The rows of a pack's segments, in the pack's order; ``prefix`` keys stand before its."""
        rows = [_visible_tokens(segment, segments, prefix) for segment in segments]
        query_counts = [segment.length for segment in segments]
        key_counts = [len(row) for row in rows]
        return cls(
            keys=torch.cat(rows).to(device),
            query_ends=_ends(query_counts, device),
            key_ends=_ends(key_counts, device),
            longest_query=max(query_counts),
            longest_key=max(key_counts),
        )


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: VarlenIndex,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attention output ``[tokens, heads, head_dim]`` of a pack.

    Args:
        query: ``[tokens, heads, head_dim]``.
        key: ``[prefix + tokens, kv_heads, head_dim]``.
        value: Likewise.
        index: The pack's rows.
        scale: Factor on scores.
        window: Sliding window, or None.

    Raises:
        ModelError: torch is too old to have the kernel.
    """
    kernel = _kernel()
    repeats = query.shape[1] // key.shape[1]
    keys, values = key[index.keys], value[index.keys]
    options: dict[str, Any] = {}
    if repeats > 1 and "enable_gqa" in inspect.signature(kernel).parameters:
        options["enable_gqa"] = True
    elif repeats > 1:
        keys, values = (t.repeat_interleave(repeats, dim=1) for t in (keys, values))
    output = kernel(
        query,
        keys,
        values,
        index.query_ends,
        index.key_ends,
        index.longest_query,
        index.longest_key,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        **options,
    )
    assert isinstance(output, Tensor)
    return output


def _kernel() -> Callable[..., Any]:
    """Torch's function. Grouped heads came to it with torch 2.12, a factor on the scores and
    windows with 2.11.

    Raises:
        ModelError: it is older than that.
    """
    if find_spec(MODULE) is not None:
        function: Callable[..., Any] = import_module(MODULE).varlen_attn
        if {"scale", "window_size"} <= inspect.signature(function).parameters.keys():
            return function
    raise ModelError(
        f"torch {torch.__version__} has no attention over rows of different lengths that takes a "
        "factor and a window; on a GPU Roost needs torch 2.11 or newer. Install that."
    )


def _visible_tokens(segment: Segment, segments: Sequence[Segment], prefix: int) -> Tensor:
    start = prefix + segment.start
    own = torch.arange(start, start + segment.length)
    span = prompt_span(segment, segments, prefix)
    if span is None:
        return own
    return torch.cat([torch.arange(span[0], span[0] + span[1]), own])


def _ends(counts: Sequence[int], device: torch.device) -> Tensor:
    ends = torch.tensor([0, *counts]).cumsum(0)
    return ends.to(device=device, dtype=torch.int32)
