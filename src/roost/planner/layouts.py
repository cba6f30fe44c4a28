"""The layouts that a set of cards allows, and the one that a plan takes when none is named."""

from __future__ import annotations

from collections.abc import Iterator

from roost.errors import ConfigError
from roost.planner.constants import PUBLISHED, Constants
from roost.planner.plan import Plan, make_plan
from roost.planner.request import Layout, Mode, Request, Strategy

SERVER_UTILIZATION = 0.92
"""vLLM's own default since 0.21."""
ROOMY = {"server": 1 / 2, "colocate": 2 / 3}
"""In guides an engine whose weights take more of its share than this gets more cards."""
SHARES = tuple(round(0.05 * step, 2) for step in range(2, 19))
"""Shares that a colocated engine is tried with: 0.10 to 0.90."""


def candidates(request: Request) -> Iterator[Layout]:
    """Every layout that keeps to what was asked for.

    Raises:
        ConfigError: the wishes contradict each other or the number of cards.
    """
    modes: tuple[Mode, ...] = ("colocate", "server")
    if request.wishes.mode is not None:
        modes = (request.wishes.mode,)
    found = False
    for mode in modes:
        for layout in _colocated(request) if mode == "colocate" else _served(request):
            found = True
            yield layout
    if not found:
        raise ConfigError(_nothing(request))


def choose(request: Request, constants: Constants = PUBLISHED) -> Plan:
    """The plan of the layout to take: the first by ``rank``; of both modes' first, the faster."""
    best: dict[Mode, Plan] = {}
    for layout in candidates(request):
        plan = make_plan(request, layout, constants)
        rival = best.get(layout.mode)
        if rival is None or rank(plan) < rank(rival):
            best[layout.mode] = plan
    return min(best.values(), key=lambda plan: (*rank(plan)[:2], plan.seconds.total))


def rank(plan: Plan) -> tuple[float, ...]:
    """The order of layouts: those that fit, or lack least; then the shortest step; of steps as
    long the most rollouts at once, the least tensor parallelism, the simplest strategy, no sleep,
    the smallest share. Under the listed convention cards are divided as guides do, whose figures
    say nothing of seconds."""
    layout = plan.layout
    return (
        not plan.fits,
        0 if plan.fits else plan.short_bytes,
        *(_as_guides_do(plan) if plan.request.listed else (plan.seconds.total,)),
        -plan.resident_in_all,
        layout.tensor_parallel,
        ("ddp", "hybrid", "fsdp").index(layout.strategy),
        layout.sleep_level,
        layout.utilization,
    )


def _as_guides_do(plan: Plan) -> tuple[float, ...]:
    """Cards evenly between trainer and server; the least tensor parallelism that
    leaves room beside the weights."""
    layout = plan.layout
    uneven = abs(layout.trainer_gpus - layout.rollout_gpus) if layout.mode == "server" else 0
    crowded = plan.engine.weights > ROOMY[layout.mode] * plan.engine.share
    return uneven, crowded, 0 if crowded else layout.tensor_parallel


def _colocated(request: Request) -> Iterator[Layout]:
    wishes, gpus = request.wishes, request.hardware.gpus
    if wishes.trainer_gpus not in (None, gpus):
        return
    shares = SHARES if wishes.utilization is None else (wishes.utilization,)
    levels = (0, 1) if wishes.sleep_level is None else (wishes.sleep_level,)
    for tp in _degrees(request, gpus):
        if gpus % tp or wishes.replicas not in (None, gpus // tp):
            continue
        for strategy in _strategies(request, gpus):
            for level in levels:
                for share in shares:
                    yield Layout("colocate", gpus, strategy, gpus, tp, gpus // tp, share, level)


def _served(request: Request) -> Iterator[Layout]:
    wishes, gpus = request.wishes, request.hardware.gpus
    if wishes.sleep_level:
        return  # a server has its cards to itself
    share = wishes.utilization if wishes.utilization is not None else SERVER_UTILIZATION
    for tp in _degrees(request, gpus - 1):
        for replicas in range(1, (gpus - 1) // tp + 1):
            trainer = gpus - tp * replicas
            if wishes.replicas not in (None, replicas):
                continue
            if wishes.trainer_gpus not in (None, trainer):
                continue
            for strategy in _strategies(request, trainer):
                yield Layout("server", trainer, strategy, tp * replicas, tp, replicas, share, 0)


def _degrees(request: Request, most: int) -> list[int]:
    """Degrees of tensor parallelism that the heads allow."""
    asked, heads = request.wishes.tensor_parallel, request.model.shape.heads
    if asked is not None:
        if heads % asked:
            raise ConfigError(
                f"--tensor-parallel {asked}: {request.model.name} has {heads} attention heads, "
                f"which {asked} does not divide."
            )
        return [asked] if asked <= most else []
    return [tp for tp in (1, 2, 4, 8, 16, 32) if tp <= most and heads % tp == 0]


def _strategies(request: Request, gpus: int) -> tuple[Strategy, ...]:
    if request.wishes.strategy is not None:
        return (request.wishes.strategy,)
    if gpus == 1:
        return ("ddp",)
    if gpus > request.hardware.gpus_per_node:
        return ("ddp", "hybrid", "fsdp")
    return ("ddp", "fsdp")


def _nothing(request: Request) -> str:
    wishes, gpus = request.wishes, request.hardware.gpus
    if wishes.mode == "server" and gpus < 2:
        return (
            "--mode server needs at least 2 cards, one to train and one to generate; there is "
            f"{gpus}. Use --mode colocate or --gpus 2."
        )
    if wishes.mode == "server" and wishes.sleep_level:
        return (
            f"--sleep-level {wishes.sleep_level}: a server has its cards to itself and never "
            "sleeps. Use --mode colocate, or leave --sleep-level out."
        )
    asked = {
        "--tensor-parallel": wishes.tensor_parallel,
        "--replicas": wishes.replicas,
        "--trainer-gpus": wishes.trainer_gpus,
    }
    named = " ".join(f"{flag} {value}" for flag, value in asked.items() if value is not None)
    rule = (
        "tensor_parallel x replicas must equal the cards"
        if wishes.mode == "colocate"
        else "tensor_parallel x replicas + trainer cards must equal the cards"
    )
    many = "1 card" if gpus == 1 else f"{gpus} cards"
    return f"{named} does not go with {many}: {rule}."
