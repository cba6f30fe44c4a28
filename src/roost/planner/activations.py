"""What a training forward keeps for its backward, and what both hold for a moment.

Counted module by module as transformers computes a layer, with attention that keeps queries, keys,
values and its output. ``benchmarks/plan_activations.py`` counts the same on the real module: where
the forward changes, run it and change ``layer_bytes`` alone.
"""

from __future__ import annotations

from roost.planner.model_shape import ModelShape

TOKEN_CHUNK, VOCABULARY_TILE = 1024, 4096
"""One tile of logits (``training.logprobs``, which this module cannot import without torch)."""
KEPT_BYTES = 128 * 2**20
"""Products with a trained head that are kept for its backward, at most (likewise)."""
TILE_FORMULA = f"float32 tiles of up to {TOKEN_CHUNK:,} x {VOCABULARY_TILE:,}"
LIVE_TILES = 4
"""Float32 tiles at once: logits, their exponentials, a product of both, and one of the tile
before."""
LOGPROB_TILE_BYTES = LIVE_TILES * TOKEN_CHUNK * VOCABULARY_TILE * 4
"""Of the largest tiles."""
FULL_LOGIT_BYTES = 2 + 4 + 4
"""Of one vocabulary entry of one token where logits are materialised: 16 bit, float32, gradient."""
SOURCE = "counted by module, in place of the 34 bytes of Korthikanti et al. 2022 (2205.05198)"


def layer_bytes(shape: ModelShape, dtype_bytes: int, *, full: bool = True) -> int:
    """Bytes that one decoder layer keeps for a token.

    Two norms keep their float32 input, and where their own weight is trained the rounded one too;
    the products after them their input once; attention queries, keys, values, output and a float32
    log-sum-exp a head; a gated unit its gate before and after, its other half, and their product.

    Args:
        shape: The model.
        dtype_bytes: Of the working precision: 2 or 4.
        full: Whether all weights are trained, or an adapter.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    wide = shape.intermediate * max(1, shape.active_experts)
    rounded = dtype_bytes if full else 0
    norms = 2 * (4 + rounded) * shape.hidden
    attention = dtype_bytes * (2 * queries + 2 * keys) + 4 * shape.heads
    return norms + 2 * dtype_bytes * shape.hidden + attention + 4 * dtype_bytes * wide


def backward_bytes(shape: ModelShape, dtype_bytes: int) -> int:
    """Bytes that the backward of one layer holds for a token besides: attention's tensors and
    their gradients in float32, the gradients of a gated unit and of a norm."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    wide = shape.intermediate * max(1, shape.active_experts)
    return 4 * (5 * queries + 4 * keys) + 4 * dtype_bytes * wide + 8 * shape.hidden


def tile_bytes(shape: ModelShape, tokens: int) -> int:
    """Bytes of the tiles of logits where so many tokens are scored."""
    return LIVE_TILES * min(TOKEN_CHUNK, tokens) * min(VOCABULARY_TILE, shape.vocabulary) * 4


def kept_product_bytes(shape: ModelShape, tokens: int, dtype_bytes: int) -> int:
    """Bytes of products with a trained head that wait for the backward."""
    return min(KEPT_BYTES, tokens * shape.vocabulary * dtype_bytes)


def token_bytes(
    shape: ModelShape, dtype_bytes: int, *, checkpointing: bool, full: bool = True
) -> int:
    """Bytes that a whole forward keeps for a token.

    With checkpointing that is the input of each layer and one layer in full, which the backward
    recomputes.
    """
    layer = layer_bytes(shape, dtype_bytes, full=full)
    if checkpointing:
        return dtype_bytes * shape.hidden * shape.layers + layer
    return layer * shape.layers


def formula(
    shape: ModelShape, dtype_bytes: int, tokens: int, *, checkpointing: bool, full: bool = True
) -> str:
    """The sum behind ``tokens * token_bytes``."""
    layer = layer_bytes(shape, dtype_bytes, full=full)
    if checkpointing:
        hidden = dtype_bytes * shape.hidden
        return f"{tokens:,} tokens x ({hidden:,} B x {shape.layers} layers + {layer:,} B of one)"
    return f"{tokens:,} tokens x {layer:,} B x {shape.layers} layers"
