"""Plans of a run on one device, of a model whose bytes are counted by hand."""

from __future__ import annotations

from typing import Any

from roost.config.loading import build_config
from roost.planner.embedded import EmbeddedPlan, plan_embedded
from roost.planner.model_shape import ModelShape
from roost.planner.models import find_shape

GIB = 2**30
QWEN = find_shape("Qwen3-0.6B").shape
PARAMETERS = 596_049_920
KV_TOKEN = 2 * 28 * 8 * 128
"""Numbers that its cache holds for a token."""


def plan(
    shape: ModelShape = QWEN,
    *,
    available: int = 80 * GIB,
    dtype_bytes: int = 2,
    prompt: int = 100,
    process: int = 0,
    device: str = "cpu",
    **sections: Any,
) -> EmbeddedPlan:
    """The plan of a run with these sections."""
    return plan_embedded(
        build_config(sections),
        shape,
        available_bytes=available,
        dtype_bytes=dtype_bytes,
        prompt_tokens=prompt,
        process_bytes=process,
        device=device,
    )


def term(made: EmbeddedPlan, phase: str, name: str) -> int | None:
    """Bytes of a term of a phase; None where it has none."""
    [chosen] = [p for p in made.phases if p.name == phase]
    return next((t.bytes for t in chosen.terms if t.name == name), None)
