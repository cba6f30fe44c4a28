"""Power at the wall, energy and money."""

from __future__ import annotations

from roost.planner.book import Book
from roost.planner.cards import Processor, registry
from roost.planner.request import Hardware

SOCKETS = 2
"""Processors of one server."""
MARGIN = 1.15
"""Fans, disks, memory and the loss of the power supplies."""
PROCESSORS = ((2, "EPYC 9135"), (4, "EPYC 9355"), (10**9, "EPYC 9555"))
"""What a server of up to so many cards has where nothing else is said."""


def processor_for(hardware: Hardware) -> Processor:
    """The processor that was given, or the usual one for a server with so many cards."""
    if hardware.processor is not None:
        return hardware.processor
    name = next(name for most, name in PROCESSORS if hardware.gpus_per_node <= most)
    return registry().processor(name)


def power(hardware: Hardware, book: Book) -> float:
    """Watts at the wall, all nodes together; an upper bound, as decoding rarely draws it all."""
    cpu = processor_for(hardware)
    each = hardware.gpus_per_node * hardware.card.tdp_w + SOCKETS * cpu.tdp_w
    return book.number(
        "power.watts_at_wall",
        hardware.nodes * each * MARGIN,
        "W",
        "nodes x (cards x TDP + 2 x processor TDP) x 1.15",
        f"{hardware.card.source_of('tdp_w')}; {cpu.source}",
        nodes=hardware.nodes,
        cards=hardware.gpus_per_node,
        card_tdp_w=hardware.card.tdp_w,
        processor=cpu.name,
        processor_tdp_w=cpu.tdp_w,
    )


def cost(hardware: Hardware, watts: float, total_s: float, book: Book) -> None:
    """Energy and money of a step; no money without a price."""
    book.number(
        "cost.energy_wh_per_step",
        watts * total_s / 3600,
        "Wh",
        "watts_at_wall x total_s / 3600",
        watts_at_wall=watts,
        total_s=total_s,
    )
    price = hardware.price if hardware.price is not None else hardware.card.price
    if price is None:
        return
    hour = book.number(
        "cost.per_hour",
        price * hardware.gpus,
        "",
        "price of a card x cards",
        "the price that was given",
        price=price,
        gpus=hardware.gpus,
    )
    book.number(
        "cost.per_step",
        hour * total_s / 3600,
        "",
        "per_hour x total_s / 3600",
        per_hour=hour,
        total_s=total_s,
    )
    book.number(
        "cost.per_1000_steps",
        1000 * hour * total_s / 3600,
        "",
        "1000 x per_step",
        per_step=hour * total_s / 3600,
    )
