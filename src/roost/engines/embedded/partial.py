"""One query a sequence over a cache of keys: the parts that a decode step joins."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from roost.model.attention import softcapped
from roost.model.flash import CHUNK, flash


def attention_parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Attention of grouped query rows over a set of keys, in parts to be joined in this order.

    Args:
        query: ``[batch, kv_heads, rows, dim]``.
        key: ``[batch, kv_heads, keys, dim]``.
        value: ``[batch, kv_heads, keys, dim]``.
        mask: Broadcastable to ``[batch, kv_heads, rows, keys]``: 0 where visible, ``MASKED``
            elsewhere.
        scale: Factor on the scores.
        softcap: Soft cap on the scores, or None.

    Yields:
        Output ``[batch, kv_heads, rows, dim]`` and float32 log-sum-exp
        ``[batch, kv_heads, rows]``.
    """
    if softcap is None and query.device.type == "cpu" and key.shape[-1] == value.shape[-1]:
        for start in range(0, key.shape[2], CHUNK):
            columns = slice(start, start + CHUNK)
            yield flash(
                query,
                key[:, :, columns],
                value[:, :, columns],
                mask[..., columns],
                scale,
                causal=False,
            )
    else:
        yield attention_by_definition(query, key, value, mask, scale, softcap)


def attention_by_definition(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """One part over all keys, in float32 throughout. Shapes as in ``attention_parts``."""
    scores = softcapped(torch.matmul(query.float(), key.float().transpose(-1, -2)) * scale, softcap)
    scores = scores + mask
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return torch.matmul(weights, value.float()).to(query.dtype), lse
