"""Packed attention on a CPU: the visible pairs of a row of tokens, divided into kernel calls.

Each part is a batch of queries over at most ``CHUNK`` keys. A segment's earlier chunks are seen
whole, its last one causally, and a completion sees its prompt's chunks whole; the parts of a query
are joined by their log-sum-exps. In backward each part is given the joined output and log-sum-exp,
which makes its share of the gradient exact (as ring attention does, Liu et al. 2023,
arXiv:2310.01889). Prompt keys and values are read by all completions and copied for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from roost.model.flash import CHUNK, FINE, MASKED, ROWS, flash, join, padded

MAX_PADDING = 0.25
"""Segments are grouped by length so that at most this share of a causal part is padding."""
PREFIX = -1
"""In place of a prompt segment's index: a prompt that is not in the row. Its keys and values come
from another forward and stand before the row's."""
_UNSEEN = 1e30
"""Log-sum-exp given to padding rows in backward: their probabilities become 0."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of a row's tokens that attends causally within itself."""

    start: int
    length: int
    prompt: int | None = None
    """Index of the prompt segment that a completion also sees whole, or ``PREFIX``; None for a
    prompt."""


def prompt_span(
    segment: Segment, segments: Sequence[Segment], prefix: int = 0
) -> tuple[int, int] | None:
    """Start and length, among the keys, of the prompt that a segment sees; None where it is one.

    Args:
        segment: One of ``segments``.
        segments: Of a row of tokens.
        prefix: Keys that stand before the row's.
    """
    if segment.prompt is None:
        return None
    if segment.prompt == PREFIX:
        return 0, prefix
    prompt = segments[segment.prompt]
    return prefix + prompt.start, prompt.length


@dataclass(frozen=True, slots=True)
class Part:
    """Queries over keys that one kernel call takes: a batch of rows, padded at the end."""

    queries: Tensor
    """``[batch, rows]`` int64, indices into the row of tokens; padding repeats index 0."""
    keys: Tensor
    """``[batch, columns]`` int64, indices into the keys; padding likewise."""
    mask: Tensor
    """``[rows or 1, columns]`` float32: 0 where a row sees a key, ``MASKED`` elsewhere."""
    causal: bool
    """Row i sees columns 0..i only, whatever the mask says."""
    real: Tensor
    """``[n]`` int64: flat positions in ``queries`` that are not padding."""
    tokens: Tensor
    """``[n]`` int64: the tokens at those positions."""


def parts_of(segments: Sequence[Segment], prefix: int = 0) -> list[Part]:
    """All parts of some segments, such that each query meets its keys in order.

    Args:
        segments: Of a row of tokens.
        prefix: Keys that stand before the row's: those of a prompt from another forward.
    """
    batches = _similar_lengths(segments)
    earlier = [part for batch in batches for part in _earlier_chunks(batch, prefix)]
    last = [part for batch in batches for part in _last_chunks(batch, prefix)]
    return [*earlier, *last, *_prompt_parts(segments, prefix)]


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scale: float
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


def _similar_lengths(segments: Sequence[Segment]) -> list[list[Segment]]:
    batches: list[list[Segment]] = []
    for segment in sorted(segments, key=lambda s: -s.length):
        if batches and segment.length >= (1.0 - MAX_PADDING) * batches[-1][0].length:
            batches[-1].append(segment)
        else:
            batches.append([segment])
    return batches


def _chunks(length: int) -> range:
    return range(0, length, CHUNK)


def _earlier_chunks(batch: Sequence[Segment], prefix: int) -> list[Part]:
    """Queries beyond a chunk over that chunk of their own segment, one part a chunk."""
    parts = []
    for end in _chunks(batch[0].length)[1:]:
        members = [s for s in batch if s.length > end]
        queries = [(s.start + end, s.length - end) for s in members]
        keys = [(prefix + s.start + end - CHUNK, CHUNK) for s in members]
        parts.append(_part(queries, keys, causal=False))
    return parts


def _last_chunks(batch: Sequence[Segment], prefix: int) -> list[Part]:
    """Queries over the chunk that they are in: for each chunk's place, its first rows over no more
    than themselves, and its later rows over the whole chunk."""
    parts = []
    for begin in _chunks(batch[0].length):
        first = [(s.start + begin, min(FINE, s.length - begin)) for s in batch if s.length > begin]
        parts.append(_part(first, [(prefix + at, n) for at, n in first], causal=True))
        long = [s for s in batch if s.length > begin + FINE]
        if long:
            later = [(s.start + begin + FINE, min(FINE, s.length - begin - FINE)) for s in long]
            whole = [(prefix + s.start + begin, min(CHUNK, s.length - begin)) for s in long]
            parts.append(_part(later, whole, offset=FINE))
    return parts


def _prompt_parts(segments: Sequence[Segment], prefix: int) -> list[Part]:
    """All completions of a prompt over each chunk of that prompt."""
    parts = []
    for span, members in groupby(segments, key=lambda s: prompt_span(s, segments, prefix)):
        if span is None:
            continue
        start, length = span
        queries = torch.cat([torch.arange(s.start, s.start + s.length) for s in members])
        for begin in _chunks(length):
            keys = (start + begin, min(CHUNK, length - begin))
            parts.append(_prompt_part(queries, keys))
    return parts


def _prompt_part(queries: Tensor, keys: tuple[int, int]) -> Part:
    rows = torch.zeros(1, len(queries) + -len(queries) % ROWS, dtype=torch.int64)
    rows[0, : len(queries)] = queries
    columns = _columns([keys])
    mask = _visible(columns.shape[1], keys[1])
    return Part(rows, columns, mask, False, torch.arange(len(queries)), queries)


def _part(
    queries: Sequence[tuple[int, int]],
    keys: Sequence[tuple[int, int]],
    *,
    causal: bool = False,
    offset: int | None = None,
) -> Part:
    """A part of spans ``(start, length)``, a batch row each.

    Args:
        queries: Spans of the rows.
        keys: Spans of the columns.
        causal: Row i sees columns 0..i.
        offset: Row i sees columns 0..offset + i; None where it sees all.
    """
    width = padded(max(length for _, length in queries))
    places = torch.arange(width)
    starts = torch.tensor([start for start, _ in queries]).unsqueeze(1)
    inside = places < torch.tensor([length for _, length in queries]).unsqueeze(1)
    rows = torch.where(inside, starts + places, 0)
    real = inside.flatten().nonzero().squeeze(1)
    columns = _columns(keys)
    # Padding columns stand behind all that a real row sees: causality hides them, and whole chunks
    # have none.
    mask = torch.zeros(1, columns.shape[1])
    if offset is not None:
        seen = torch.arange(columns.shape[1]) <= places.unsqueeze(1) + offset
        mask = torch.where(seen, 0.0, MASKED)
    return Part(rows, columns, mask, causal, real, rows.flatten()[real])


def _columns(keys: Sequence[tuple[int, int]]) -> Tensor:
    """Indices ``[batch, columns]`` of spans of keys, padded with index 0."""
    columns = torch.zeros(len(keys), padded(max(length for _, length in keys)), dtype=torch.int64)
    for row, (start, length) in enumerate(keys):
        columns[row, :length] = torch.arange(start, start + length)
    return columns


def _visible(columns: int, count: int) -> Tensor:
    """``[1, columns]``: the first ``count`` are seen."""
    return torch.where(torch.arange(columns) < count, 0.0, MASKED).unsqueeze(0)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scale: float
    ) -> Tensor:
        total = torch.zeros_like(query, dtype=torch.float32)
        lse = total.new_full(query.shape[:2], -torch.inf)
        for part in parts:
            output, part_lse = _run(part, query, key, value, scale)
            joined = join(total[part.tokens], lse[part.tokens], output, part_lse)
            total[part.tokens], lse[part.tokens] = joined
        output = total.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.parts, ctx.scale = parts, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *saved, lse = ctx.saved_tensors
        dtype = saved[0].dtype
        # All in float32: in bfloat16 a prompt key's G contributions would be rounded, and the
        # kernel's backward takes up to twice as long as in float32 (benchmarks/notes.md).
        query, key, value, output = (tensor.float() for tensor in saved)
        gradient = gradients[0].float()
        totals = [torch.zeros_like(tensor) for tensor in (query, key, value)]
        for part in ctx.parts:
            _add_part_gradients(totals, part, gradient, query, key, value, output, lse, ctx.scale)
        return (*(total.to(dtype) for total in totals), None, None)


def _run(
    part: Part, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Output ``[n, heads, head_dim]`` and log-sum-exp ``[n, heads]`` of a part's real rows."""
    kv_heads = key.shape[1]
    q, k, v = _kernel_inputs(part, query, key, value)
    output, lse = flash(q, k, v, part.mask[None, None], scale, causal=part.causal)
    return (
        _to_tokens(output, part, kv_heads),
        _to_tokens(lse.unsqueeze(-1), part, kv_heads).squeeze(-1),
    )


def _add_part_gradients(
    totals: Sequence[Tensor],
    part: Part,
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    scale: float,
) -> None:
    kv_heads = key.shape[1]
    q, k, v = _kernel_inputs(part, query, key, value)
    out = _from_tokens(output, part, kv_heads, fill=0.0)
    grad = _from_tokens(gradient, part, kv_heads, fill=0.0)
    rows_lse = _from_tokens(lse.unsqueeze(-1), part, kv_heads, fill=_UNSEEN).squeeze(-1)
    mask = None if part.causal else part.mask.expand(*q.shape[:3], -1)
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, rows_lse, 0.0, part.causal, attn_mask=mask, scale=scale
    )
    totals[0].index_add_(0, part.tokens, _to_tokens(dq, part, kv_heads))
    for total, part_gradient in ((totals[1], dk), (totals[2], dv)):
        # [batch * kv, repeat, columns, d]: heads of a group share their key and value.
        summed = part_gradient.sum(dim=1)
        batch, columns = part.keys.shape
        by_key = summed.view(batch, kv_heads, columns, -1).transpose(1, 2).flatten(0, 1)
        # Padding columns repeat index 0, and their gradient is 0.
        total.index_add_(0, part.keys.flatten(), by_key)


def _kernel_inputs(
    part: Part, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries ``[batch * kv, repeat, rows, d]``, keys and values likewise with columns.

    Their ``repeat`` axis is a view: grouped heads without copies.
    """
    kv_heads, repeat = key.shape[1], query.shape[1] // key.shape[1]
    q = _split_heads(query[part.queries], kv_heads)
    k, v = (
        t[part.keys].transpose(1, 2).flatten(0, 1).unsqueeze(1).expand(-1, repeat, -1, -1)
        for t in (key, value)
    )
    return q, k, v


def _split_heads(rows: Tensor, kv_heads: int) -> Tensor:
    """``[batch, rows, heads, d]`` to ``[batch * kv, repeat, rows, d]``."""
    batch, count, heads, width = rows.shape
    split = rows.view(batch, count, kv_heads, heads // kv_heads, width)
    return split.permute(0, 2, 3, 1, 4).flatten(0, 1).contiguous()


def _from_tokens(values: Tensor, part: Part, kv_heads: int, *, fill: float) -> Tensor:
    """``[tokens, heads, d]`` to kernel layout, padding rows filled with a constant."""
    batch, count = part.queries.shape
    rows = values.new_full((batch * count, *values.shape[1:]), fill)
    rows[part.real] = values[part.tokens]
    return _split_heads(rows.view(batch, count, *values.shape[1:]), kv_heads)


def _to_tokens(kernel: Tensor, part: Part, kv_heads: int) -> Tensor:
    """Kernel layout to ``[n, heads, d]``, padding rows left out."""
    batch, count = part.queries.shape
    repeat, width = kernel.shape[1], kernel.shape[-1]
    split = kernel.view(batch, kv_heads, repeat, count, width).permute(0, 3, 1, 2, 4)
    return split.reshape(batch * count, kv_heads * repeat, width)[part.real]
