"""The two attention layouts of the engine: whole prompts, and one new token a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from roost.engines.embedded.cache import SlotCache
from roost.engines.embedded.partial import attention_by_definition, attention_parts
from roost.model.attention import AttentionParams, visible
from roost.model.flash import MASKED, join, padded
from roost.model.packed_attention import PackedParts, packed_attention
from roost.model.parts import Segment
from roost.model.varlen import VarlenIndex, varlen_attention


class PrefillLayout:
    """Whole prompts back to back, without padding; their keys and values go to the cache.

    Example: prompts of lengths (3, 2) in slots (0, 4) are a pack of 5 tokens at positions
    0 1 2 0 1; tokens 0-2 see each other causally, and so do tokens 3-4.
    """

    def __init__(self, cache: SlotCache, slots: Sequence[int], lengths: Sequence[int]) -> None:
        self._cache = cache
        self._slots = slots
        self._lengths = list(lengths)
        self._packed: PackedParts | None = None
        self._varlen: VarlenIndex | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """See ``AttentionLayout``."""
        self._store(key, value, params.layer)
        half = query.dtype in (torch.bfloat16, torch.float16)
        if query.is_cuda and half and params.softcap is None:
            window = None if params.is_plain(max(self._lengths)) else params.window
            return varlen_attention(query, key, value, self._index(query), params.scale, window)
        if query.device.type == "cpu" and params.is_plain(max(self._lengths)):
            return packed_attention(query, key, value, self._parts(), params.scale)
        parts = (torch.split(tensor, self._lengths) for tensor in (query, key, value))
        outputs = []
        for triple in zip(*parts, strict=True):
            q, k, v = (part.transpose(0, 1) for part in triple)
            outputs.append(causal_attention(q, k, v, params).transpose(0, 1))
        return torch.cat(outputs)

    def _store(self, key: Tensor, value: Tensor, layer: int) -> None:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        parts = (torch.split(tensor, self._lengths) for tensor in (key, value))
        for slot, length, k, v in zip(self._slots, self._lengths, *parts, strict=True):
            keys[slot, :, :length] = k.transpose(0, 1)
            values[slot, :, :length] = v.transpose(0, 1)

    def _parts(self) -> PackedParts:
        """The same parts as a training pack has, so that both compute the same bits."""
        if self._packed is None:
            self._packed = PackedParts(self._segments())
        return self._packed

    def _index(self, query: Tensor) -> VarlenIndex:
        """The same rows as a training pack has on a GPU; made once, used by all layers."""
        if self._varlen is None:
            self._varlen = VarlenIndex.of(self._segments(), query.device)
        return self._varlen

    def _segments(self) -> list[Segment]:
        ends = accumulate(self._lengths)
        return [Segment(e - n, n) for e, n in zip(ends, self._lengths, strict=True)]


def causal_attention(query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
    """Causal attention of one sequence.

    Args:
        query: ``[heads, tokens, dim]``.
        key: ``[kv_heads, tokens, dim]``.
        value: ``[kv_heads, tokens, dim]``.
        params: The layer's constants.
    """
    tokens = query.shape[1]
    if params.is_plain(tokens):
        output = F.scaled_dot_product_attention(
            query[None], key[None], value[None], is_causal=True, scale=params.scale, enable_gqa=True
        )
        return output[0]
    positions = torch.arange(tokens, device=query.device)
    mask = additive(visible(positions, positions, params.window))
    kv_heads, dim = key.shape[0], query.shape[2]
    repeats = query.shape[0] // kv_heads
    output, _ = attention_by_definition(
        query.reshape(1, kv_heads, repeats * tokens, dim),
        key[None],
        value[None],
        mask.repeat(repeats, 1)[None, None],
        params.scale,
        params.softcap,
    )
    return output.reshape(query.shape[0], tokens, value.shape[2])


@dataclass(frozen=True, slots=True)
class Row:
    """Where the next token of one running sequence stands."""

    group: int
    """Slot of its prompt."""
    prompt_length: int
    own_length: int
    """Tokens of the completion that are in the cache already."""


class DecodeLayout:
    """One new token for each running sequence; row i owns slot i of the completions' cache.

    A query sees two disjoint sets of keys: its own completion and its group's prompt. Each set
    is attended to where it lies, the prompt once for all rows of the group, and the two results
    are merged by their log-sum-exps: nothing is copied, and no head is repeated.
    """

    def __init__(self, prompts: SlotCache, own: SlotCache, rows: Sequence[Row]) -> None:
        device = own.keys[0].device
        self._prompts = prompts
        self._own = own
        self._count = len(rows)
        self._grouping = _Grouping.of([row.group for row in rows], device)
        self._own_lengths = torch.tensor([row.own_length for row in rows], device=device)
        self._prompt_lengths = torch.tensor([row.prompt_length for row in rows], device=device)
        self._rows = torch.arange(self._count, device=device)
        self._own_keys = padded(max(row.own_length for row in rows) + 1)
        self._prompt_keys = padded(max(row.prompt_length for row in rows))
        self._longest = max(row.prompt_length + row.own_length for row in rows) + 1
        self._masks: dict[int | None, tuple[Tensor, Tensor]] = {}
        self.positions = self._own_lengths + self._prompt_lengths
        """``[rows]``, each new token's position within its sequence."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """See ``AttentionLayout``."""
        layer, kv_heads = params.layer, key.shape[1]
        repeats = query.shape[1] // kv_heads
        own_keys, own_values = self._own.keys[layer], self._own.values[layer]
        own_keys[self._rows, :, self._own_lengths] = key
        own_values[self._rows, :, self._own_lengths] = value
        rows = query.reshape(self._count, kv_heads, repeats, query.shape[2])
        window = None if params.window is None or params.window >= self._longest else params.window
        own_mask, prompt_mask = self._mask(window, repeats)
        own = attention_parts(
            rows,
            own_keys[: self._count, :, : self._own_keys],
            own_values[: self._count, :, : self._own_keys],
            own_mask,
            params.scale,
            params.softcap,
        )
        groups = self._grouping.groups
        prompt = attention_parts(
            self._grouping.gather(rows),
            self._prompts.keys[layer][:groups, :, : self._prompt_keys],
            self._prompts.values[layer][:groups, :, : self._prompt_keys],
            prompt_mask,
            params.scale,
            params.softcap,
        )
        scattered = (
            (self._grouping.scatter(output, repeats), self._grouping.scatter(lse, repeats))
            for output, lse in prompt
        )
        return _joined([*own, *scattered]).to(query.dtype).flatten(1, 2)

    def _mask(self, window: int | None, repeats: int) -> tuple[Tensor, Tensor]:
        """Additive masks of both key sets, shared by all layers with this window."""
        if window not in self._masks:
            self._masks[window] = (self._own_mask(window), self._prompt_mask(window, repeats))
        return self._masks[window]

    def _own_mask(self, window: int | None) -> Tensor:
        """``[rows, 1, 1, keys]``. Own keys count from the completion's start."""
        keys = torch.arange(self._own_keys, device=self._rows.device)
        return additive(visible(self._own_lengths[:, None], keys, window))[:, None]

    def _prompt_mask(self, window: int | None, repeats: int) -> Tensor:
        """``[groups, 1, members * repeats, keys]``; member-wise, since windows move with rows."""
        keys = torch.arange(self._prompt_keys, device=self._rows.device)
        seen = visible(self.positions[:, None], keys, window)[:, 0]
        mask = additive(seen & (keys < self._prompt_lengths[:, None]))
        members = mask[self._grouping.gather_index].view(self._grouping.groups, -1, keys.numel())
        return members.repeat_interleave(repeats, dim=1)[:, None]


@dataclass(frozen=True, slots=True)
class _Grouping:
    """Moves per-row tensors into per-group ones and back.

    Example: rows of groups (0, 1, 0) become ``[[row 0, row 2], [row 1, padding]]``.
    """

    groups: int
    gather_index: Tensor
    """``[groups * members]``, the row at each place; row 0 at padding."""
    scatter_index: Tensor
    """``[rows]``, the place of each row."""

    @classmethod
    def of(cls, group_of_row: Sequence[int], device: torch.device) -> _Grouping:
        members: dict[int, list[int]] = {}
        for row, group in enumerate(group_of_row):
            members.setdefault(group, []).append(row)
        groups, width = max(members) + 1, max(map(len, members.values()))
        gather, scatter = [0] * (groups * width), [0] * len(group_of_row)
        for group, rows in members.items():
            for place, row in enumerate(rows, start=group * width):
                gather[place], scatter[row] = row, place
        return cls(
            groups, torch.tensor(gather, device=device), torch.tensor(scatter, device=device)
        )

    def gather(self, rows: Tensor) -> Tensor:
        """``[rows, kv_heads, repeats, dim]`` to ``[groups, kv_heads, members * repeats, dim]``."""
        members = rows[self.gather_index].view(self.groups, -1, *rows.shape[1:])
        return members.transpose(1, 2).flatten(2, 3)

    def scatter(self, grouped: Tensor, repeats: int) -> Tensor:
        """``[groups, kv_heads, members * repeats, ...]`` to ``[rows, kv_heads, repeats, ...]``."""
        groups, kv_heads, _, *rest = grouped.shape
        members = grouped.reshape(groups, kv_heads, -1, repeats, *rest).transpose(1, 2)
        return members.flatten(0, 1)[self.scatter_index]


def _joined(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Float32 attention over the union of the parts' keys."""
    total, lse = parts[0][0].float(), parts[0][1]
    for part, part_lse in parts[1:]:
        total, lse = join(total, lse, part, part_lse)
    return total


def additive(seen: Tensor) -> Tensor:
    """0 where seen, ``MASKED`` elsewhere, float32."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, MASKED)
