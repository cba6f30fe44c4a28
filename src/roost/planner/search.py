"""Many plans beside each other: layouts, and numbers of cards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from roost.errors import ConfigError
from roost.planner.constants import PUBLISHED, Constants
from roost.planner.layouts import candidates, choose, rank
from roost.planner.plan import Plan, make_plan
from roost.planner.request import Request

Order = Literal["time", "headroom", "cost"]
SERVERS = (1, 2, 3, 4, 5, 6, 7, 8)
"""Cards of one server that ``--gpus auto`` tries; then whole servers of eight."""
MOST_NODES = 16


def search(request: Request, constants: Constants = PUBLISHED) -> list[Plan]:
    """The layouts that fit, the one that a plan takes first; of those that differ only in a share,
    the first."""
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
        if key not in best or rank(plan) < rank(best[key]):
            best[key] = plan
    return ranked(best.values(), "time")


def ranked(plans: Iterable[Plan], order: Order) -> list[Plan]:
    """Plans by step time, by headroom on the fullest card, or by card-seconds of a step;
    of equals,
    the one that a plan takes first."""
    by_rank = sorted(plans, key=rank)
    keys = {
        "time": lambda plan: plan.seconds.total,
        "headroom": lambda plan: -plan.headroom_bytes,
        "cost": lambda plan: plan.seconds.total * plan.request.hardware.gpus,
    }
    return sorted(by_rank, key=keys[order])


def smallest(
    request: Request, *, nodes: int | None = None, constants: Constants = PUBLISHED
) -> Plan:
    """The plan with the fewest cards that fits; where none does, that of the most cards tried.

    Args:
        nodes: Servers, where their number is given.

    Raises:
        ConfigError: what was asked for contradicts itself on every number of cards.
    """
    last: Plan | None = None
    refused: ConfigError | None = None
    for gpus, servers in _sizes(nodes):
        try:
            last = _on(request, gpus, servers, constants)
        except ConfigError as error:
            refused = error  # too few cards for what was asked, such as a server on one
            continue
        if last.fits:
            return last if nodes else _fewer(request, last, constants)
    if last is None:
        raise refused or ConfigError("--gpus auto: there is nothing to try.")
    return last


def _on(request: Request, gpus: int, nodes: int, constants: Constants) -> Plan:
    hardware = replace(request.hardware, gpus_per_node=gpus, nodes=nodes)
    return choose(replace(request, hardware=hardware), constants)


def _sizes(given: int | None) -> Iterator[tuple[int, int]]:
    """Cards and servers to try: every number of cards of one, then twice as many servers."""
    for gpus in SERVERS:
        yield gpus, given or 1
    nodes = 2
    while given is None and nodes <= MOST_NODES:
        yield SERVERS[-1], nodes
        nodes *= 2


def _fewer(request: Request, plan: Plan, constants: Constants) -> Plan:
    """The first plan that fits on a number of servers that doubling them passed over."""
    hardware = plan.request.hardware
    doubled = hardware.gpus_per_node == SERVERS[-1] and hardware.nodes > 2
    for nodes in range(hardware.nodes // 2 + 1, hardware.nodes) if doubled else ():
        try:
            fewer = _on(request, SERVERS[-1], nodes, constants)
        except ConfigError:
            continue  # what was asked for does not divide so many cards
        if fewer.fits:
            return fewer
    return plan
