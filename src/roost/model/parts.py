"""The visible pairs of a row of tokens, divided into calls of the CPU's attention kernel.

Each part is a batch of queries over at most ``CHUNK`` keys. A segment's earlier chunks are seen
whole, its last one causally, and a completion sees its prompt's chunks whole.
``model.packed_attention`` computes the parts and joins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from roost.model.flash import CHUNK, FINE, MASKED, ROWS, padded

MAX_PADDING = 0.25
"""Segments are grouped by length so that at most this share of a causal part is padding."""
PADDING = -1
"""In place of a token's index: a row or column of a part that stands for no token."""
PREFIX = -1
"""In place of a prompt segment's index: a prompt that is not in the row. Its keys and values come
from another forward and stand before the row's."""


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
    """``[batch, rows]`` int64, indices into the row of tokens; ``PADDING`` where there is none."""
    keys: Tensor
    """``[batch, columns]`` int64, indices into the keys; likewise."""
    mask: Tensor
    """``[rows or 1, columns]`` float32: 0 where a row sees a key, ``MASKED`` elsewhere."""
    causal: bool
    """Row i sees columns 0..i only, whatever the mask says."""


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
    rows = torch.full((1, len(queries) + -len(queries) % ROWS), PADDING)
    rows[0, : len(queries)] = queries
    columns = _columns([keys])
    return Part(rows, columns, _visible(columns.shape[1], keys[1]), causal=False)


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
    rows = torch.where(inside, starts + places, PADDING)
    columns = _columns(keys)
    # Padding columns stand behind all that a real row sees: causality hides them, and whole chunks
    # have none.
    mask = torch.zeros(1, columns.shape[1])
    if offset is not None:
        seen = torch.arange(columns.shape[1]) <= places.unsqueeze(1) + offset
        mask = torch.where(seen, 0.0, MASKED)
    return Part(rows, columns, mask, causal)


def _columns(keys: Sequence[tuple[int, int]]) -> Tensor:
    """Indices ``[batch, columns]`` of spans of keys."""
    columns = torch.full((len(keys), padded(max(length for _, length in keys))), PADDING)
    for row, (start, length) in enumerate(keys):
        columns[row, :length] = torch.arange(start, start + length)
    return columns


def _visible(columns: int, count: int) -> Tensor:
    """``[1, columns]``: the first ``count`` are seen."""
    return torch.where(torch.arange(columns) < count, 0.0, MASKED).unsqueeze(0)
