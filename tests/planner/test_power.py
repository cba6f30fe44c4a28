"""Watts at the wall, energy and money, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roost.planner.book import Book
from roost.planner.cards import Processor
from roost.planner.power import cost, power, processor_for
from roost.planner.request import Hardware
from support.toy_plans import card, value

CPU = Processor("made up", 50, "made up")


def test_a_server_s_watts() -> None:
    book = Book()
    hardware = Hardware(card(), gpus_per_node=3, nodes=2, processor=CPU)
    # Two nodes of three cards of 100 W and two processors of 50 W, and 15 % on top.
    assert power(hardware, book) == pytest.approx(2 * (300 + 100) * 1.15)
    assert value(book, "power.watts_at_wall") == pytest.approx(920)


@pytest.mark.parametrize(
    ("gpus", "name"),
    [(1, "EPYC 9135"), (2, "EPYC 9135"), (3, "EPYC 9355"), (4, "EPYC 9355"), (8, "EPYC 9555")],
)
def test_the_usual_processor_of_a_server(gpus: int, name: str) -> None:
    assert processor_for(Hardware(card(), gpus_per_node=gpus)).name == name


def test_the_processor_that_was_given_is_taken() -> None:
    assert processor_for(Hardware(card(), processor=CPU)) == CPU


def test_energy_and_money_of_a_step() -> None:
    book = Book()
    cost(Hardware(card(), gpus_per_node=4, price=2.0), watts=1000, total_s=90, book=book)
    assert value(book, "cost.energy_wh_per_step") == pytest.approx(25)
    assert value(book, "cost.per_hour") == pytest.approx(8)
    assert value(book, "cost.per_step") == pytest.approx(0.2)
    assert value(book, "cost.per_1000_steps") == pytest.approx(200)


def test_a_price_of_nothing_is_a_price_and_no_price_is_none() -> None:
    free, unknown, listed = Book(), Book(), Book()
    cost(Hardware(card(), price=0.0), 1000, 90, free)
    cost(Hardware(card()), 1000, 90, unknown)
    cost(Hardware(replace(card(), price=3.0)), 1000, 3600, listed)
    assert value(free, "cost.per_hour") == 0
    assert list(unknown.figures) == ["cost.energy_wh_per_step"]
    assert value(listed, "cost.per_step") == pytest.approx(3)
