"""What limits a run."""

from __future__ import annotations

from roost.planner.engine_memory import EngineMemory, max_sequences
from roost.planner.request import Layout, Request
from roost.planner.terms import Phase
from roost.planner.timing import Seconds


def binding(
    request: Request,
    layout: Layout,
    held: tuple[Phase, ...],
    engine: EngineMemory,
    spent: Seconds,
) -> str:
    """A phase that does not fit, or else the slowest one; where that is decoding, what it waits
    for."""
    peak = max(held, key=lambda phase: phase.bytes)
    if peak.bytes > request.card_bytes:
        return f"memory: {peak.name} phase"
    if engine.resident < 1:
        return "memory: key-value cache"
    slowest = max(
        ("generate", spent.generate),
        ("train", spent.train),
        ("sync", spent.sync),
        ("sleep and wake", spent.sleep_wake),
        ("log-probabilities", spent.logprob),
        key=lambda pair: pair[1],
    )[0]
    if slowest != "generate":
        return slowest
    if spent.passes > 1:
        capped = max_sequences(request, layout) < engine.resident
        return "generate: max_num_seqs" if capped else "generate: key-value cache"
    return f"generate: {spent.decode.bound}"
