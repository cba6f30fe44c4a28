"""Attention over a part of a sequence's keys, and the merge of two such parts.

Softmax attention over a union of key sets is the mean of the attentions over each set, weighted
by their shares of the total exponential sum (FlashAttention, arXiv:2205.14135, section 3.1; split
keys as in arXiv:2311.01282).
"""

from __future__ import annotations

import torch
from torch import Tensor

from roost.model.attention import softcapped

MASKED = -1e30
"""Added to the scores of invisible keys. Finite, so that a part without a single visible key has
a finite output and a log-sum-exp so low that the merge gives it weight 0, never NaN."""


def partial_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Attention of grouped query rows over a set of keys, with its log-sum-exp.

    Args:
        query: ``[batch, kv_heads, rows, dim]``.
        key: ``[batch, kv_heads, keys, dim]``.
        value: ``[batch, kv_heads, keys, dim]``.
        mask: Broadcastable to ``[batch, kv_heads, rows, keys]``: 0 where visible, ``MASKED``
            elsewhere; None where every key is visible to every row.
        scale: Factor on the scores.
        softcap: Soft cap on the scores, or None.

    Returns:
        Output ``[batch, kv_heads, rows, dim]`` and float32 log-sum-exp
        ``[batch, kv_heads, rows]``.
    """
    if softcap is None and query.device.type == "cpu" and key.shape[-1] == value.shape[-1]:
        full = None if mask is None else mask.expand(*query.shape[:3], key.shape[2])
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, attn_mask=full, scale=scale
        )
        return output, lse
    return _eager(query, key, value, mask, scale, softcap)


def _eager(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    scores = softcapped(torch.matmul(query.float(), key.float().transpose(-1, -2)) * scale, softcap)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return torch.matmul(weights, value.float()).to(query.dtype), lse


def merge(first: Tensor, first_lse: Tensor, second: Tensor, second_lse: Tensor) -> Tensor:
    """Attention over the union of two disjoint key sets.

    Args:
        first: ``[..., dim]``, attention over the first set.
        first_lse: ``[...]`` float32.
        second: ``[..., dim]``.
        second_lse: ``[...]`` float32.
    """
    share = torch.sigmoid(first_lse - second_lse).unsqueeze(-1)
    return torch.lerp(second, first, share.to(first.dtype))
