"""Packed attention on a CPU: the parts of a row of tokens, computed and joined.

The parts of a query are joined by their log-sum-exps. In backward each part is given the joined
output and log-sum-exp, which makes its share of the gradient exact (as ring attention does, Liu et
al. 2023, arXiv:2310.01889).

Tensors are brought into the kernel's layout, all parts behind one another, by one selection of
whole rows, and back by as many as a token has parts. A row is what one token has for one key head:
``repeat`` queries or one key. Selecting whole rows takes a tenth of the time of indexing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roost.model.flash import flash, join
from roost.model.parts import PADDING, Part, Segment, parts_of

_UNSEEN = 1e30
"""Log-sum-exp given to padding rows in backward: their probabilities become 0."""


class PackedParts:
    """The parts of some segments, with the places of their tokens. Made once, used by all layers.

    Args:
        segments: Of a row of tokens.
        prefix: Keys that stand before the row's: those of a prompt from another forward.
    """

    def __init__(self, segments: Sequence[Segment], prefix: int = 0) -> None:
        self.parts = parts_of(segments, prefix)
        self._places: dict[int, tuple[_Places, _Places]] = {}

    def places(self, kv_heads: int) -> tuple[_Places, _Places]:
        """Of queries and of keys, in a model with so many key heads."""
        if kv_heads not in self._places:
            self._places[kv_heads] = (
                _Places.of([part.queries for part in self.parts], kv_heads),
                _Places.of([part.keys for part in self.parts], kv_heads),
            )
        return self._places[kv_heads]


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, parts: PackedParts, scale: float
) -> Tensor:
    """Attention output ``[tokens, heads, head_dim]``, with gradient.

    Args:
        query: ``[tokens, heads, head_dim]``.
        key: ``[prefix + tokens, kv_heads, head_dim]``.
        value: Likewise.
        parts: What each token sees.
        scale: Factor on the scores.
    """
    output: Tensor = _PackedAttention.apply(query, key, value, parts, scale)  # type: ignore[no-untyped-call]
    return output


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the rows ``[tokens * kv_heads, ...]`` of tokens stand in the kernel's layout.

    There each part has its rows as ``[batch * kv_heads, width]``, and the parts follow one another.
    """

    sources: Tensor
    """``[places]`` int64: the row at each place, 0 where there is none."""
    padding: Tensor
    """``[n]`` int64: places where there is none."""
    first: Tensor
    """``[tokens * kv_heads]`` int64: the first place of each row."""
    later: list[tuple[Tensor, Tensor]]
    """Rows that have a second place, with it; rows that have a third; and so on."""
    sizes: list[int]
    """Places of each part."""

    @classmethod
    def of(cls, tokens: Sequence[Tensor], kv_heads: int) -> _Places:
        """From the tokens ``[batch, width]`` of each part."""
        heads = torch.arange(kv_heads).unsqueeze(1)
        rows = [
            torch.where(part == PADDING, PADDING, part * kv_heads + heads).flatten()
            for part in (part.unsqueeze(1) for part in tokens)
        ]
        flat = torch.cat(rows)
        first, *later = _occurrences(flat)
        return cls(
            sources=flat.clamp(min=0),
            padding=(flat == PADDING).nonzero().squeeze(1),
            first=first[1],
            later=later,
            sizes=[len(part) for part in rows],
        )

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """What ``take`` gave, by part."""
        return torch.split(values, self.sizes)

    def take(self, rows: Tensor) -> Tensor:
        """``[tokens * kv_heads, ...]`` to ``[places, ...]``."""
        return rows.index_select(0, self.sources)

    def add_up(self, values: Tensor) -> Tensor:
        """``[places, ...]`` to ``[tokens * kv_heads, ...]``: sums over the places of each row."""
        total = values.index_select(0, self.first)
        for rows, places in self.later:
            total.index_add_(0, rows, values.index_select(0, places))
        return total


def _occurrences(rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Rows in rising order with the first place of each, those with a second one, and so on.

    >>> _occurrences(torch.tensor([1, 0, -1, 1]))
    [(tensor([0, 1]), tensor([1, 0])), (tensor([1]), tensor([3]))]
    """
    order = rows.argsort(stable=True)
    order = order[rows[order] != PADDING]
    ordered = rows[order]
    starts = torch.searchsorted(ordered, ordered)
    rank = torch.arange(len(ordered)) - starts
    turns = range(int(rank.max()) + 1)
    return [(ordered[rank == turn], order[rank == turn]) for turn in turns]


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: PackedParts, scale: float
    ) -> Tensor:
        kv_heads = key.shape[1]
        queries, _ = parts.places(kv_heads)
        outputs, sums = [], []
        for part, (q, k, v) in zip(parts.parts, _by_part(parts, query, key, value), strict=True):
            output, lse = flash(q, k, v, part.mask[None, None], scale, causal=part.causal)
            outputs.append(_rows(output))
            sums.append(_rows(lse))
        output, lse = _joined(queries, torch.cat(outputs), torch.cat(sums))
        output = output.to(query.dtype).view(query.shape)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.parts, ctx.scale = parts, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        parts: PackedParts = ctx.parts
        kv_heads = key.shape[1]
        queries, keys = parts.places(kv_heads)
        rows_lse = queries.take(lse).index_fill_(0, queries.padding, _UNSEEN)
        inputs = zip(
            parts.parts,
            _by_part(parts, query, key, value),
            queries.split(_take(queries, output, kv_heads)),
            queries.split(_take(queries, gradients[0], kv_heads)),
            queries.split(rows_lse),
            strict=True,
        )
        found = [_part_gradients(*part, ctx.scale) for part in inputs]
        to_query, to_key, to_value = (torch.cat(part) for part in zip(*found, strict=True))
        return (
            queries.add_up(to_query).to(query.dtype).view(query.shape),
            keys.add_up(to_key).to(key.dtype).view(key.shape),
            keys.add_up(to_value).to(value.dtype).view(value.shape),
            None,
            None,
        )


def _joined(queries: _Places, outputs: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 output ``[rows, repeat, head_dim]`` and log-sum-exp ``[rows, repeat]``."""
    total = outputs.index_select(0, queries.first).float()
    total_lse = lse.index_select(0, queries.first)
    for rows, places in queries.later:
        before, before_lse = total.index_select(0, rows), total_lse.index_select(0, rows)
        after = outputs.index_select(0, places), lse.index_select(0, places)
        joined, joined_lse = join(before, before_lse, *after)
        total.index_copy_(0, rows, joined)
        total_lse.index_copy_(0, rows, joined_lse)
    return total, total_lse


def _by_part(
    parts: PackedParts, query: Tensor, key: Tensor, value: Tensor
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each part, queries ``[batch * kv_heads, repeat, rows, head_dim]``, keys and values
    likewise with columns. Their ``repeat`` axis is a view: grouped heads without copies."""
    kv_heads, repeat = key.shape[1], query.shape[1] // key.shape[1]
    queries, keys = parts.places(kv_heads)
    by_query = queries.split(_take(queries, query, kv_heads))
    by_key = keys.split(_take(keys, key, kv_heads))
    by_value = keys.split(_take(keys, value, kv_heads))
    return [
        (
            _kernel(q, part.queries.shape[1]),
            _kernel(k, part.keys.shape[1]).expand(-1, repeat, -1, -1),
            _kernel(v, part.keys.shape[1]).expand(-1, repeat, -1, -1),
        )
        for part, q, k, v in zip(parts.parts, by_query, by_key, by_value, strict=True)
    ]


def _take(places: _Places, values: Tensor, kv_heads: int) -> Tensor:
    """``[tokens, heads, d]`` to ``[places, repeat, d]``."""
    tokens, heads, width = values.shape
    return places.take(values.reshape(tokens * kv_heads, heads // kv_heads, width))


def _kernel(rows: Tensor, width: int) -> Tensor:
    """``[batch * width, repeat, ...]`` to ``[batch, repeat, width, ...]``, a view."""
    return rows.view(-1, width, *rows.shape[1:]).transpose(1, 2)


def _rows(kernel: Tensor) -> Tensor:
    """What ``_kernel`` takes, from what it gives; a view where the kernel wrote it so."""
    return kernel.transpose(1, 2).flatten(0, 1)


def _part_gradients(
    part: Part,
    kernel_inputs: tuple[Tensor, Tensor, Tensor],
    output: Tensor,
    gradient: Tensor,
    lse: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a part's queries, keys and values, float32, in the layout of ``_rows``.

    All in float32: in bfloat16 a prompt key's G contributions would be rounded, and the kernel's
    backward takes up to twice as long as in float32 (benchmarks/notes.md).
    """
    q, k, v = kernel_inputs
    repeat, rows = q.shape[1], part.queries.shape[1]
    k, v = (tensor[:, :1].float().expand(-1, repeat, -1, -1) for tensor in (k, v))
    to_query, to_key, to_value = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _kernel(gradient.float(), rows),
            q.float(),
            k,
            v,
            _kernel(output.float(), rows),
            _kernel(lse, rows),
            0.0,
            part.causal,
            attn_mask=None if part.causal else part.mask.expand(*q.shape[:3], -1),
            scale=scale,
        )
    )
    # Heads of a group share their key and value.
    summed = (g.sum(dim=1, keepdim=True) for g in (to_key, to_value))
    return (_rows(to_query), *(_rows(g) for g in summed))  # type: ignore[return-value]
