"""Attention of a training pack: each completion sees its prompt and its own earlier tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from roost.model.attention import AttentionParams, softcapped, visible
from roost.model.packed_attention import PackedParts, packed_attention
from roost.model.parts import Segment, prompt_span
from roost.model.varlen import VarlenIndex, varlen_attention

KeysValues = Mapping[int, tuple[Tensor, Tensor]]
"""By layer, keys and values ``[tokens, kv_heads, head_dim]`` of a prompt from another forward."""


class PackLayout:
    """The attention of one pack.

    Args:
        segments: The pack's prompts and completions.
        device: Where the pack is computed.
        prefix: What segments that name ``PREFIX`` see before themselves.
        prefix_length: Its tokens.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        device: torch.device,
        prefix: KeysValues | None = None,
        prefix_length: int = 0,
    ) -> None:
        self.segments = list(segments)
        self.device = device
        self.prefix = prefix
        self.prefix_length = prefix_length
        self.longest = max(s.length + self._prompt_length(s) for s in segments)
        """Tokens of the longest prompt with completion."""
        self._parts: PackedParts | None = None
        self._varlen: VarlenIndex | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Attention output ``[tokens, heads, head_dim]``."""
        if self.prefix is not None:
            keys, values = self.prefix[params.layer]
            key, value = torch.cat([keys, key]), torch.cat([values, value])
        half = query.dtype in (torch.bfloat16, torch.float16)
        if query.is_cuda and params.softcap is None and half:
            window = None if params.is_plain(self.longest) else params.window
            return varlen_attention(query, key, value, self.varlen(), params.scale, window)
        on_cpu = query.device.type == "cpu" and query.dtype in (torch.float32, torch.bfloat16)
        if on_cpu and params.is_plain(self.longest):
            return packed_attention(query, key, value, self.parts(), params.scale)
        return attend_by_definition(query, key, value, self.segments, params, self.prefix_length)

    def parts(self) -> PackedParts:
        """Made once, used by all layers."""
        if self._parts is None:
            self._parts = PackedParts(self.segments, self.prefix_length)
        return self._parts

    def varlen(self) -> VarlenIndex:
        """Made once, used by all layers."""
        if self._varlen is None:
            self._varlen = VarlenIndex.of(self.segments, self.device, self.prefix_length)
        return self._varlen

    def _prompt_length(self, segment: Segment) -> int:
        span = prompt_span(segment, self.segments, self.prefix_length)
        return 0 if span is None else span[1]


def attend_by_definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Sequence[Segment],
    params: AttentionParams,
    prefix: int = 0,
) -> Tensor:
    """Attention written out, one sequence at a time: for soft caps, windows and float64.

    Shapes as in ``PackLayout.attend``; the first ``prefix`` keys are not of the row.
    """
    repeat = query.shape[1] // key.shape[1]
    outputs = []
    for segment in segments:
        own = slice(segment.start, segment.start + segment.length)
        seen_own = slice(prefix + own.start, prefix + own.stop)
        keys, values, before = key[seen_own], value[seen_own], 0
        span = prompt_span(segment, segments, prefix)
        if span is not None:
            shared, before = slice(span[0], span[0] + span[1]), span[1]
            keys, values = torch.cat([key[shared], keys]), torch.cat([value[shared], values])
        positions = torch.arange(len(keys), device=query.device)
        seen = visible(positions[before:], positions, params.window)
        keys = keys.repeat_interleave(repeat, dim=1)
        values = values.repeat_interleave(repeat, dim=1)
        wide = torch.promote_types(query.dtype, torch.float32)
        q, keys, values = query[own].to(wide), keys.to(wide), values.to(wide)
        scores = torch.einsum("qhd,khd->hqk", q, keys) * params.scale
        scores = softcapped(scores, params.softcap).masked_fill(~seen, -torch.inf)
        output = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), values)
        outputs.append(output.to(query.dtype))
    return torch.cat(outputs)
