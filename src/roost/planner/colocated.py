"""What a vLLM engine in the trainer's process holds beside the trainer."""

from __future__ import annotations

from collections.abc import Iterator

from roost.planner.engine_memory import FORWARD_WIDTH
from roost.planner.model_shape import ModelShape
from roost.planner.terms import Term

BLOCK_TOKENS = 32
"""Tokens of a cache block on a CPU, where it is largest; one is never used."""
BATCH_TOKENS = 4096
"""Most tokens of one engine step."""
BUCKET_BYTES = 256 * 2**20
"""Most bytes of weights on their way at once in a sync; a larger tensor goes alone."""


def sequence_tokens(tokens: int) -> int:
    """Cache places of a sequence: whole blocks."""
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


def engine_terms(
    shape: ModelShape,
    dtype_bytes: int,
    cache: int,
    kv_token: int,
    adapter: int,
    *,
    shards: int = 1,
) -> Iterator[Term]:
    """What the engine holds while it is awake.

    Args:
        shape: The model.
        dtype_bytes: Of the working precision.
        cache: Bytes of its key-value cache.
        kv_token: Bytes of one token in it.
        adapter: Parameters of the adapter; 0 for none.
        shards: Devices that hold the engine together; the terms are of one.
    """
    copies = shape.parameters + adapter
    divided = f" / {shards} shards" if shards > 1 else ""
    yield Term(
        "engine weights",
        dtype_bytes * copies // shards,
        f"{dtype_bytes} B x {copies:,} parameters{divided}",
    )
    yield Term("key-value cache", cache, f"taken whole; {kv_token:,} B a token")
    wide = shape.intermediate * max(1, shape.active_experts) // shards
    width = FORWARD_WIDTH * (wide + shape.hidden)
    yield Term(
        "engine activations",
        BATCH_TOKENS * width,
        f"{BATCH_TOKENS:,} tokens x {FORWARD_WIDTH} B x (intermediate{divided} + hidden)",
    )


def bucket_term(shape: ModelShape, dtype_bytes: int, adapter: int) -> Term:
    """What a sync holds besides, for a moment."""
    whole = dtype_bytes * (adapter or shape.parameters)
    return Term("sync bucket", min(BUCKET_BYTES, whole), "min(256 MiB, what is sent)")
