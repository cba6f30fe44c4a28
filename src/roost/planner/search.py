"""Many plans beside each other: layouts, numbers of cards, kinds of card, lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from roost.errors import ConfigError
from roost.planner.cards import Card
from roost.planner.constants import PUBLISHED, Constants
from roost.planner.layouts import candidates, choose
from roost.planner.plan import Plan, make_plan
from roost.planner.request import Request

Order = Literal["time", "headroom", "cost"]
SERVERS = (1, 2, 3, 4, 5, 6, 7, 8)
"""Cards of one server that ``--gpus auto`` tries; then whole servers of eight."""
MOST_NODES = 16


def search(request: Request, constants: Constants = PUBLISHED) -> list[Plan]:
    """The layouts that fit, fastest first; of those that differ only in a share, the fastest."""
    best: dict[tuple[object, ...], Plan] = {}
    for layout in candidates(request):
        plan = make_plan(request, layout, constants)
        if not plan.fits:
            continue
        key = (
            layout.mode,
            layout.trainer_gpus,
            layout.strategy,
            layout.tensor_parallel,
            layout.replicas,
            layout.sleep_level,
        )
        if key not in best or plan.seconds.total < best[key].seconds.total:
            best[key] = plan
    return ranked(best.values(), "time")


def ranked(plans: Iterable[Plan], order: Order) -> list[Plan]:
    """Plans by step time, by headroom on the fullest card, or by card-seconds of a step."""
    keys = {
        "time": lambda plan: plan.seconds.total,
        "headroom": lambda plan: -plan.headroom_bytes,
        "cost": lambda plan: plan.seconds.total * plan.request.hardware.gpus,
    }
    return sorted(plans, key=keys[order])


def smallest(request: Request, constants: Constants = PUBLISHED) -> Plan:
    """The plan with the fewest cards that fits.

    Raises:
        ConfigError: not even the largest set does.
    """
    for gpus, nodes in _sizes():
        hardware = replace(request.hardware, gpus_per_node=gpus, nodes=nodes)
        try:
            plan = choose(replace(request, hardware=hardware), constants)
        except ConfigError:
            continue  # too few cards for what was asked, such as a server on one
        if plan.fits:
            return plan
    raise ConfigError(
        f"--gpus auto: no set of up to {8 * MOST_NODES} x {request.hardware.card.name} fits. "
        "Leave more of the layout open, or take a larger card, an adapter, or shorter completions."
    )


def _sizes() -> Iterator[tuple[int, int]]:
    for gpus in SERVERS:
        yield gpus, 1
    for nodes in range(2, MOST_NODES + 1):
        yield 8, nodes


def compare(
    request: Request, cards: Iterable[Card], constants: Constants = PUBLISHED
) -> list[Plan]:
    """The same request on other cards."""
    return [
        choose(replace(request, hardware=replace(request.hardware, card=card)), constants)
        for card in cards
    ]


def sweep(
    request: Request,
    name: Literal["completion_tokens", "generations"],
    values: Iterable[int],
    constants: Constants = PUBLISHED,
) -> list[Plan]:
    """The same request with other lengths or group sizes, each in its own best layout."""
    out = []
    for value in values:
        fields: dict[str, int] = {name: value}
        other = replace(request, workload=replace(request.workload, **fields))
        out.append(choose(other, constants))
    return out
