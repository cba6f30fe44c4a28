"""Weights on their way to an engine, a bounded number of bytes at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from roost.errors import EngineError
from roost.planner.colocated import BUCKET_BYTES

Named = tuple[str, Tensor]


def buckets(tensors: Iterable[Named], limit: int = BUCKET_BYTES) -> Iterator[list[Named]]:
    """Tensors in order, as many together as fit in ``limit`` bytes.

    >>> import torch
    >>> a, b = torch.zeros(2), torch.zeros(3)
    >>> [[n for n, _ in bucket] for bucket in buckets([("a", a), ("b", b), ("c", a)], 20)]
    [['a', 'b'], ['c']]
    """
    if limit < 1:
        raise EngineError(f"a bucket of {limit} bytes holds nothing")
    bucket: list[Named] = []
    held = 0
    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if bucket and held + size > limit:
            yield bucket
            bucket, held = [], 0
        bucket.append((name, tensor))
        held += size
    if bucket:
        yield bucket
