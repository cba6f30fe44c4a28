"""Many plans beside each other: layouts, and numbers of cards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from roost.errors import ConfigError
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


def smallest(
    request: Request, *, nodes: int | None = None, constants: Constants = PUBLISHED
) -> Plan:
    """The plan with the fewest cards that fits.

    Args:
        nodes: Servers, where their number is given.

    Raises:
        ConfigError: not even the largest set does.
    """
    for gpus, servers in _sizes(nodes):
        hardware = replace(request.hardware, gpus_per_node=gpus, nodes=servers)
        try:
            plan = choose(replace(request, hardware=hardware), constants)
        except ConfigError:
            continue  # too few cards for what was asked, such as a server on one
        if plan.fits:
            return plan
    raise ConfigError(
        f"--gpus auto: no set of up to {SERVERS[-1] * (nodes or MOST_NODES)} x "
        f"{request.hardware.card.name} fits. "
        "Leave more of the layout open, or take a larger card, an adapter, or shorter completions."
    )


def _sizes(given: int | None) -> Iterator[tuple[int, int]]:
    for gpus in SERVERS:
        yield gpus, given or 1
    if given is None:
        for nodes in range(2, MOST_NODES + 1):
            yield SERVERS[-1], nodes
