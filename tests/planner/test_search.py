"""Plans beside each other: what is tried, and in which order."""

from __future__ import annotations

from dataclasses import replace

from roost.planner.cards import registry
from roost.planner.layouts import choose
from roost.planner.models import find_shape
from roost.planner.request import Hardware, Request, Training, Wishes, Workload
from roost.planner.search import ranked, search, smallest
from support.toy_plans import card, request

H100 = registry().card("H100")
WORK = Workload(8, 8, 512, 1024)


def test_a_search_names_each_layout_once_and_only_those_that_fit() -> None:
    plans = search(Request(find_shape("Llama-3.1-8B"), Hardware(H100, 2), WORK))
    assert all(plan.fits for plan in plans)
    # A server trains on one card; both are shared in two strategies, two degrees, two sleeps.
    keys = [
        (p.layout.mode, p.layout.strategy, p.layout.tensor_parallel, p.layout.sleep_level)
        for p in plans
    ]
    assert len(keys) == len(set(keys)) == 1 + 2 * 2 * 2
    times = [plan.seconds.total for plan in plans]
    assert times == sorted(times)


def test_a_search_finds_nothing_where_nothing_fits() -> None:
    assert search(Request(find_shape("Qwen3-32B"), Hardware(registry().card("T4")))) == []


def test_orders() -> None:
    small = choose(request(Hardware(card())))
    large = choose(request(Hardware(card(memory_visible_bytes=20 * 2**30), 4)))
    assert ranked([small, large], "headroom") == [large, small]
    cheap = min((small, large), key=lambda p: p.seconds.total * p.request.hardware.gpus)
    assert ranked([small, large], "cost")[0] is cheap
    quick = min((small, large), key=lambda p: p.seconds.total)
    assert ranked([large, small], "time")[0] is quick


def test_the_smallest_set_is_the_first_that_fits() -> None:
    # 16 bytes a weight of 8B are 120 GiB: more than one card of 79 GiB, and less than three.
    asked = Request(find_shape("Llama-3.1-8B"), Hardware(H100), WORK, Training("full"))
    plan = smallest(asked)
    gpus = plan.request.hardware.gpus
    assert plan.fits
    assert 2 <= gpus <= 3
    fewer = replace(asked, hardware=Hardware(H100, gpus - 1))
    assert not choose(fewer).fits


def test_a_server_takes_two_cards_at_the_least() -> None:
    asked = Request(find_shape("Qwen3-0.6B"), Hardware(H100), WORK, wishes=Wishes(mode="server"))
    assert smallest(asked).request.hardware.gpus == 2
