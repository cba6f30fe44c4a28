"""The CPU's flash kernel, called so that a query's result does not depend on its company.

Engine and trainer compute the same attention in different company: one query over a growing cache,
or all queries of a pack at once. In bfloat16 the difference between two roundings of one number is
large enough to matter: through 30 layers it grows to several hundredths of a nat a token. Called
as here, a query's output and log-sum-exp are the same bits in both, on the processors seen so far
(``tests/model/test_flash.py``; where they are not, only the mismatch grows):

- keys come in chunks of ``CHUNK``, counted from the start of their sequence, and a chunk that is
  not full in one of a few widths (``padded``), what is not there masked: the kernel's sums over up
  to 128 keys add exact zeros for masked ones, over more they depend on how many more;
- the queries are a multiple of ``ROWS``: products of fewer than four rows take another path;
- there is always a mask: with and without one, scores are rounded differently;
- parts are joined in float32, in the order of their keys: a completion's own chunks, then its
  prompt's.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 256
"""Most keys of one kernel call."""
FINE = 128
"""Up to so many keys, any multiple of ``ALIGN`` gives the same bits."""
ALIGN = 32
"""Keys of a call with at most ``FINE``."""
ROWS = 4
"""Queries of a call are a multiple of this."""
MASKED = -1e30
"""Added to the scores of invisible keys. Finite, so that a part without a single visible key has
a finite output and a log-sum-exp so low that joining gives it weight 0, never NaN."""


def padded(count: int) -> int:
    """Columns for so many keys: whole chunks, and for the rest the next width a call may have.

    >>> [padded(n) for n in (1, 33, 128, 129, 256, 257, 400)]
    [32, 64, 128, 256, 256, 288, 512]
    """
    whole, rest = divmod(count, CHUNK)
    last = CHUNK if rest > FINE else -(-rest // ALIGN) * ALIGN
    return whole * CHUNK + last


def flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attention over at most ``CHUNK`` keys, and its log-sum-exp.

    Args:
        query: ``[batch, heads, rows, dim]``.
        key: ``[batch, heads, columns, dim]``, columns as ``padded`` gives them.
        value: Likewise.
        mask: Float32, broadcastable to ``[batch, heads, rows, columns]``: 0 or ``MASKED``.
        scale: Factor on the scores.
        causal: Row i sees columns 0 to i only.

    Returns:
        Output like ``query``, and float32 ``[batch, heads, rows]``.
    """
    rows, columns = query.shape[2], key.shape[2]
    if columns > CHUNK or columns != padded(columns):
        raise ValueError(f"{columns} keys in one call: pad them to {padded(columns)}")
    missing = -rows % ROWS
    if missing:
        query = F.pad(query, (0, 0, 0, missing))
        mask = F.pad(mask, (0, 0, 0, missing)) if mask.shape[2] > 1 else mask
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query,
        key,
        value,
        0.0,
        causal,
        attn_mask=mask.expand(*query.shape[:3], columns),
        scale=scale,
    )
    return output[:, :, :rows], lse[:, :, :rows]


def join(total: Tensor, total_lse: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, from that over each.

    Softmax over a union is the mean of the softmaxes over the parts, weighted by their shares of
    the exponential sum (FlashAttention, arXiv:2205.14135, section 3.1).

    Args:
        total: ``[..., dim]`` float32.
        total_lse: ``[...]`` float32: log of the sum of the exponentiated scores; ``-inf`` where
            there is nothing yet.
        part: ``[..., dim]``.
        part_lse: ``[...]`` float32, finite.
    """
    # Contiguous: torch's exponentials of strided tensors take a scalar path that rounds otherwise.
    total_lse, part_lse = total_lse.contiguous(), part_lse.contiguous()
    lse = torch.logaddexp(total_lse, part_lse)
    old, new = torch.exp(total_lse - lse), torch.exp(part_lse - lse)
    return total * old.unsqueeze(-1) + part.to(total.dtype) * new.unsqueeze(-1), lse
