"""Whether vLLM can divide a model among devices."""

from __future__ import annotations

from roost.errors import ConfigError
from roost.planner.model_shape import ModelShape

VOCABULARY_BLOCK = 64
"""vLLM pads the vocabulary to a multiple of this before it divides it."""


def check_shards(count: int, shape: ModelShape, field: str) -> None:
    """Say before anything is loaded when a model cannot be divided by tensor parallelism.

    Args:
        count: Shards of one engine.
        shape: The model.
        field: What asks for so many, for the error.

    Raises:
        ConfigError: naming what does not come out even.
    """
    # With fewer heads of keys and values than shards, some shards hold the same head.
    kv_fits = max(count, shape.kv_heads) % min(count, shape.kv_heads) == 0
    rows = -(-shape.vocabulary // VOCABULARY_BLOCK) * VOCABULARY_BLOCK
    for what, size, fits in (
        ("attention heads", shape.heads, shape.heads % count == 0),
        ("heads of keys and values", shape.kv_heads, kv_fits),
        ("feed-forward width", shape.intermediate, shape.intermediate % count == 0),
        (f"vocabulary in blocks of {VOCABULARY_BLOCK}", rows, rows % count == 0),
    ):
        if not fits:
            raise ConfigError(
                f"{field} = {count}: the model's {what} ({size}) cannot be divided among {count} "
                f"devices. Its {shape.heads} attention heads and {shape.kv_heads} heads of keys "
                "and values allow their common divisors."
            )
