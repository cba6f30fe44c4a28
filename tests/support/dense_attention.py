"""Attention of a pack by its definition: one dense mask over all tokens, in float64."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from roost.model.attention import AttentionParams
from roost.model.parts import Segment


def segments_of(groups: list[tuple[int, list[int]]]) -> list[Segment]:
    """Each prompt, then its completions; ``groups`` gives their lengths."""
    lengths, prompts = [], []
    for prompt, completions in groups:
        index = len(lengths)
        lengths += [prompt, *completions]
        prompts += [None, *[index] * len(completions)]
    starts = [0, *accumulate(lengths)][:-1]
    return [Segment(*entry) for entry in zip(starts, lengths, prompts, strict=True)]


def seen_by(segments: list[Segment], window: int | None) -> Tensor:
    """``[tokens, tokens]``: which token sees which, written out pair by pair."""
    owner = [index for index, s in enumerate(segments) for _ in range(s.length)]

    def position(token: int) -> int:
        segment = segments[owner[token]]
        before = 0 if segment.prompt is None else segments[segment.prompt].length
        return before + token - segment.start

    def sees(query: int, key: int) -> bool:
        same = owner[query] == owner[key]
        shared = segments[owner[query]].prompt == owner[key]
        distance = position(query) - position(key)
        return (same or shared) and 0 <= distance < (window or 10**9)

    count = len(owner)
    return torch.tensor([[sees(q, k) for k in range(count)] for q in range(count)])


def by_definition(
    tensors: list[Tensor], segments: list[Segment], params: AttentionParams
) -> Tensor:
    """Float64 output ``[tokens, heads, dim]``; query head h reads key head h // (heads / kv)."""
    query, key, value = (t.double() for t in tensors)
    seen = seen_by(segments, params.window)
    outputs = []
    for head in range(query.shape[1]):
        group = head * key.shape[1] // query.shape[1]
        scores = query[:, head] @ key[:, group].T * params.scale
        if params.softcap is not None:
            scores = params.softcap * torch.tanh(scores / params.softcap)
        weights = torch.where(seen, scores, -torch.inf).softmax(-1)
        outputs.append(weights @ value[:, group])
    return torch.stack(outputs, dim=1)
