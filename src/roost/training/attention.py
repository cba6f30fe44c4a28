"""Attention of a training pack: each completion sees its prompt and its own earlier tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from roost.model.attention import AttentionParams, softcapped, visible
from roost.model.parts import Part, Segment, packed_attention, parts_of
from roost.training.varlen import VarlenIndex, varlen_attention


class PackLayout:
    """The attention of one pack.

    Args:
        segments: The pack's prompts and completions.
        device: Where the pack is computed.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.segments = list(segments)
        self.device = device
        self.longest = max(
            s.length + (0 if s.prompt is None else segments[s.prompt].length) for s in segments
        )
        """Tokens of the longest prompt with completion."""
        self._parts: list[Part] | None = None
        self._varlen: VarlenIndex | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Attention output ``[tokens, heads, head_dim]``."""
        half = query.dtype in (torch.bfloat16, torch.float16)
        if query.is_cuda and params.softcap is None and half:
            if self._varlen is None:
                self._varlen = VarlenIndex.of(self.segments, self.device)
            window = None if params.is_plain(self.longest) else params.window
            return varlen_attention(query, key, value, self._varlen, params.scale, window)
        on_cpu = query.device.type == "cpu" and query.dtype in (torch.float32, torch.bfloat16)
        if on_cpu and params.is_plain(self.longest):
            return packed_attention(query, key, value, self.parts(), params.scale)
        return attend_by_definition(query, key, value, self.segments, params)

    def parts(self) -> list[Part]:
        """Made once, used by all layers."""
        if self._parts is None:
            self._parts = parts_of(self.segments)
        return self._parts


def attend_by_definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Sequence[Segment],
    params: AttentionParams,
) -> Tensor:
    """Attention written out, one sequence at a time: for soft caps, windows and float64.

    Shapes as in ``PackLayout.attend``.
    """
    repeat = query.shape[1] // key.shape[1]
    outputs = []
    for segment in segments:
        own = slice(segment.start, segment.start + segment.length)
        keys, values, before = key[own], value[own], 0
        if segment.prompt is not None:
            prompt = segments[segment.prompt]
            shared = slice(prompt.start, prompt.start + prompt.length)
            keys, values = torch.cat([key[shared], keys]), torch.cat([value[shared], values])
            before = prompt.length
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
