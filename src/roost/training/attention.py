"""Attention of a training pack: each completion sees its prompt and its own earlier tokens.

The visible pairs of a pack fall into parts that a flash kernel takes without a mask: prompts over
themselves, completions over themselves, and completions over their whole prompt. A completion's
two parts are joined by their log-sum-exps. In backward each part is given the joined output and
log-sum-exp, which makes its share of the gradient exact (as ring attention does, Liu et al. 2023,
arXiv:2310.01889). Prompt keys and values are read by all G completions and copied for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from roost.model.attention import AttentionParams, softcapped, visible
from roost.training.packing import Segment
from roost.training.varlen import VarlenIndex, varlen_attention

MAX_PADDING = 0.25
"""Sequences are grouped by length so that at most this share of a causal part is padding."""
_UNSEEN = 1e30
"""Log-sum-exp given to padding rows in backward: their probabilities become 0."""


@dataclass(frozen=True, slots=True)
class Part:
    """Queries over keys that one kernel call takes: a batch of rows, padded at the end."""

    queries: Tensor
    """``[batch, rows]`` int64, indices into the pack; padding rows repeat index 0."""
    keys: Tensor
    """``[batch, columns]`` likewise."""
    causal: bool
    """Row i sees columns 0..i, so padding at the end is never seen; else every row sees all."""
    real: Tensor
    """``[n]`` int64: flat positions in ``queries`` that are not padding."""
    tokens: Tensor
    """``[n]`` int64: the pack's tokens at those positions."""


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
        self._parts: tuple[list[Part], list[Part]] | None = None
        self._varlen: VarlenIndex | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Attention output ``[tokens, heads, head_dim]``."""
        window = params.window if params.window and params.window < self.longest else None
        if query.is_cuda and params.softcap is None and query.dtype != torch.float32:
            if self._varlen is None:
                self._varlen = VarlenIndex.of(self.segments, self.device)
            return varlen_attention(query, key, value, self._varlen, params.scale, window)
        plain = params.softcap is None and window is None and not query.is_cuda
        if plain and query.dtype in (torch.float32, torch.bfloat16):
            output: Tensor = _PackedFlash.apply(  # type: ignore[no-untyped-call]
                query, key, value, self.parts(), params.scale
            )
            return output
        return attend_by_definition(query, key, value, self.segments, params, window)

    def parts(self) -> tuple[list[Part], list[Part]]:
        """The causal parts and the completions-over-prompt parts; made once, used by all layers."""
        if self._parts is None:
            self._parts = _own_parts(self.segments), _prompt_parts(self.segments)
        return self._parts


def attend_by_definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Sequence[Segment],
    params: AttentionParams,
    window: int | None,
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
        seen = visible(positions[before:], positions, window)
        keys = keys.repeat_interleave(repeat, dim=1)
        values = values.repeat_interleave(repeat, dim=1)
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = torch.einsum("qhd,khd->hqk", query[own], keys).to(wide) * params.scale
        scores = softcapped(scores, params.softcap).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(dim=-1).to(query.dtype)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


def _own_parts(segments: Sequence[Segment]) -> list[Part]:
    """Every segment over itself, in batches of similar length."""
    ordered = sorted(segments, key=lambda s: -s.length)
    batches: list[list[Segment]] = []
    for segment in ordered:
        if batches and segment.length >= (1.0 - MAX_PADDING) * batches[-1][0].length:
            batches[-1].append(segment)
        else:
            batches.append([segment])
    return [_causal_part(batch) for batch in batches]


def _causal_part(batch: Sequence[Segment]) -> Part:
    width = batch[0].length
    rows = torch.arange(width)
    starts = torch.tensor([s.start for s in batch]).unsqueeze(1)
    inside = rows < torch.tensor([s.length for s in batch]).unsqueeze(1)
    index = torch.where(inside, starts + rows, 0)
    return _part(index, index, inside, causal=True)


def _prompt_parts(segments: Sequence[Segment]) -> list[Part]:
    """All completions of a prompt over that prompt, one part a prompt."""
    completions = [s for s in segments if s.prompt is not None]
    parts = []
    for prompt_index, members in groupby(completions, key=lambda s: s.prompt):
        assert prompt_index is not None
        prompt = segments[prompt_index]
        queries = torch.cat([torch.arange(s.start, s.start + s.length) for s in members])
        keys = torch.arange(prompt.start, prompt.start + prompt.length)
        inside = torch.ones(1, len(queries), dtype=torch.bool)
        parts.append(_part(queries.unsqueeze(0), keys.unsqueeze(0), inside, causal=False))
    return parts


def _part(queries: Tensor, keys: Tensor, inside: Tensor, *, causal: bool) -> Part:
    real = inside.flatten().nonzero().squeeze(1)
    return Part(queries, keys, causal, real, queries.flatten()[real])


class _PackedFlash(torch.autograd.Function):
    """The parts of a pack through torch's flash kernel for CPUs, which gives log-sum-exps."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        parts: tuple[list[Part], list[Part]],
        scale: float,
    ) -> Tensor:
        own, shared = parts
        output, lse = _run_parts(query, key, value, own, scale)
        if shared:
            tokens = torch.cat([part.tokens for part in shared])
            first = output[tokens], lse[tokens]
            second = _run_parts(query, key, value, shared, scale)
            output[tokens], lse[tokens] = join(*first, second[0][tokens], second[1][tokens])
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.parts, ctx.scale = [*own, *shared], scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        (gradient,) = gradients
        # Sums over parts in float32: in bfloat16 a prompt key's G contributions would be rounded.
        totals = [torch.zeros_like(t, dtype=torch.float32) for t in (query, key, value)]
        for part in ctx.parts:
            _add_part_gradients(totals, part, gradient, query, key, value, output, lse, ctx.scale)
        return (*(t.to(query.dtype) for t in totals), None, None)


def join(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, from that over each.

    Args:
        out_a: ``[..., head_dim]``.
        lse_a: ``[...]`` float32: log of the sum of the exponentiated scores.
        out_b: Like ``out_a``.
        lse_b: Like ``lse_a``.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = torch.exp(lse_a - lse), torch.exp(lse_b - lse)
    joined = out_a.float() * weight_a.unsqueeze(-1) + out_b.float() * weight_b.unsqueeze(-1)
    return joined.to(out_a.dtype), lse


def _run_parts(
    query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs ``[tokens, heads, head_dim]`` and log-sum-exps ``[tokens, heads]`` of some parts."""
    output = torch.zeros_like(query)
    lse = query.new_zeros(query.shape[:2], dtype=torch.float32)
    kv_heads = key.shape[1]
    for part in parts:
        q, k, v = _kernel_inputs(part, query, key, value)
        out, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, part.causal, scale=scale
        )
        output[part.tokens] = _to_tokens(out, part, kv_heads)
        lse[part.tokens] = _to_tokens(part_lse.unsqueeze(-1), part, kv_heads).squeeze(-1)
    return output, lse


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
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, rows_lse, 0.0, part.causal, scale=scale
    )
    totals[0].index_add_(0, part.tokens, _to_tokens(dq, part, kv_heads).float())
    for total, part_gradient in ((totals[1], dk), (totals[2], dv)):
        # [batch * kv, repeat, columns, d]: heads of a group share their key and value.
        summed = part_gradient.float().sum(dim=1)
        batch, columns = part.keys.shape
        by_key = summed.view(batch, kv_heads, columns, -1).transpose(1, 2).flatten(0, 1)
        if part.causal:
            total.index_add_(0, part.tokens, by_key[part.real])
        else:
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
