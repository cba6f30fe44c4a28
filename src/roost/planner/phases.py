"""What a card holds in each phase of a step. What must fit is the largest, not the sum."""

from __future__ import annotations

from roost.planner.engine_memory import EngineMemory
from roost.planner.request import Layout, Request
from roost.planner.terms import Phase, Term
from roost.planner.trainer_memory import TrainerMemory

SLEEP_RESIDUAL = 2 * 2**30
"""What a sleeping engine keeps: CUDA graphs, context, buffers. Logs say 1.4 to 4.3 GiB."""


def training_budget(request: Request, layout: Layout) -> int:
    """Bytes of a card that training may take while the engine rests."""
    if layout.mode == "server":
        return request.card_bytes
    return request.card_bytes - sum(term.bytes for term in resting(request, layout))


def resting(request: Request, layout: Layout) -> tuple[Term, ...]:
    """What a colocated engine keeps of a card while training."""
    if layout.sleep_level == 0:
        share = round(layout.utilization * request.card_bytes)
        return (Term("engine share", share, f"{layout.utilization} x card memory, awake"),)
    if request.listed:
        return ()
    return (
        Term("sleeping engine", SLEEP_RESIDUAL, "2 GiB", {}, "vLLM sleep logs: 1.4 to 4.3 GiB"),
    )


def phases(
    request: Request, layout: Layout, engine: EngineMemory, trainer: TrainerMemory
) -> tuple[Phase, ...]:
    """The phases of a step, in order."""
    gathered = tuple(term for term in trainer.working if term.name == "gathered layers")
    train = (*trainer.resident, *trainer.working)
    if layout.mode == "server":
        return (
            Phase("generate", engine.terms, "rollout"),
            Phase("sync", (*trainer.resident, *gathered), "trainer"),
            Phase("train", train, "trainer"),
        )
    weights = tuple(term for term in engine.terms if term.name == "engine weights")
    # A sleeping engine wakes its weights for the sync and its cache only afterwards.
    awake = engine.terms if layout.sleep_level == 0 else weights
    return (
        Phase("generate", (*trainer.resident, *engine.terms)),
        Phase("sync", (*trainer.resident, *gathered, *awake)),
        Phase("train", (*train, *resting(request, layout))),
    )
