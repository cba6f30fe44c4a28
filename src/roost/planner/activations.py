"""What a training forward keeps for its backward."""

from __future__ import annotations

from roost.planner.model_shape import ModelShape

LOGPROB_TILE_BYTES = 3 * 1024 * 8192 * 4
"""One float32 tile of logits (``training.logprobs``) with its exponentials and gradient."""
FULL_LOGIT_BYTES = 2 + 4 + 4
"""Of one vocabulary entry of one token where logits are materialised: 16 bit, float32, gradient."""
SOURCE = "counted by module, in place of the 34 bytes of Korthikanti et al. 2022 (2205.05198)"


def layer_bytes(shape: ModelShape, dtype_bytes: int) -> int:
    """Bytes that one decoder layer keeps for a token: its norms in float32, all products once."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    wide = shape.intermediate * max(1, shape.active_experts)
    products = 6 * shape.hidden + 3 * queries + 4 * keys + 4 * wide
    return dtype_bytes * products + 4 * 4 * shape.hidden


def token_bytes(shape: ModelShape, dtype_bytes: int, *, checkpointing: bool) -> int:
    """Bytes that a whole forward keeps for a token.

    With checkpointing that is the input of each layer and one layer in full, which the backward
    recomputes.
    """
    layer = layer_bytes(shape, dtype_bytes)
    if checkpointing:
        return dtype_bytes * shape.hidden * shape.layers + layer
    return layer * shape.layers


def formula(shape: ModelShape, dtype_bytes: int, tokens: int, *, checkpointing: bool) -> str:
    """The sum behind ``tokens * token_bytes``."""
    layer = layer_bytes(shape, dtype_bytes)
    if checkpointing:
        hidden = dtype_bytes * shape.hidden
        return f"{tokens:,} tokens x ({hidden:,} B x {shape.layers} layers + {layer:,} B of one)"
    return f"{tokens:,} tokens x {layer:,} B x {shape.layers} layers"
