"""The layouts that cards allow, and the one that is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roost.errors import ConfigError
from roost.planner.cards import registry
from roost.planner.layouts import SHARES, candidates, choose
from roost.planner.models import find_shape
from roost.planner.request import Hardware, Layout, Request, Wishes, Workload
from support.toy_plans import card, request


def asked(gpus: int, nodes: int = 1, **wishes: object) -> Request:
    return request(Hardware(card(), gpus, nodes), wishes=Wishes(**wishes))  # type: ignore[arg-type]


def kinds(found: Request) -> set[tuple[object, ...]]:
    return {
        (x.mode, x.trainer_gpus, x.strategy, x.tensor_parallel, x.replicas)
        for x in candidates(found)
    }


def test_one_card_is_shared_in_every_share_awake_and_asleep() -> None:
    found = list(candidates(asked(1)))
    assert {x.mode for x in found} == {"colocate"}
    assert sorted((x.sleep_level, x.utilization) for x in found) == sorted(
        (level, share) for level in (0, 1) for share in SHARES
    )
    assert (min(SHARES), max(SHARES)) == (0.1, 0.9)


def test_two_cards_by_hand() -> None:
    assert kinds(asked(2)) == {
        ("colocate", 2, "ddp", 1, 2),
        ("colocate", 2, "fsdp", 1, 2),
        ("colocate", 2, "ddp", 2, 1),
        ("colocate", 2, "fsdp", 2, 1),
        ("server", 1, "ddp", 1, 1),
    }


def test_every_card_has_one_place() -> None:
    for layout in candidates(asked(6)):
        assert layout.rollout_gpus == layout.tensor_parallel * layout.replicas
        if layout.mode == "colocate":
            assert layout.trainer_gpus == layout.rollout_gpus == 6
        else:
            assert layout.trainer_gpus + layout.rollout_gpus == 6
            assert layout.trainer_gpus >= 1


def test_heads_are_never_divided() -> None:
    # Four heads: eight cards of one engine would hold half a head each.
    assert {x.tensor_parallel for x in candidates(asked(16))} == {1, 2, 4}


def test_hybrid_sharding_needs_nodes() -> None:
    assert "hybrid" not in {x.strategy for x in candidates(asked(8, mode="colocate"))}
    assert "hybrid" in {x.strategy for x in candidates(asked(4, 2, mode="colocate"))}


def test_wishes_are_kept() -> None:
    wishes = {"mode": "server", "tensor_parallel": 2, "replicas": 1, "trainer_gpus": 2}
    found = list(candidates(asked(4, **wishes, strategy="fsdp", utilization=0.7)))
    assert found == [Layout("server", 2, "fsdp", 2, 2, 1, 0.7, 0)]


@pytest.mark.parametrize(
    ("gpus", "wishes", "message"),
    [
        (1, {"mode": "server"}, "needs at least 2 cards, one to train and one to generate"),
        (2, {"tensor_parallel": 3}, "has 4 attention heads, which 3 does not divide"),
        (4, {"mode": "server", "replicas": 4}, "--replicas 4 does not go with 4 cards"),
        (3, {"mode": "colocate", "tensor_parallel": 2}, "tensor_parallel x replicas must equal"),
        (4, {"mode": "server", "trainer_gpus": 4}, "trainer cards must equal the cards"),
    ],
)
def test_wishes_that_contradict_each_other(
    gpus: int, wishes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        list(candidates(asked(gpus, **wishes)))


def test_the_layout_that_is_taken_fits_where_one_does() -> None:
    # 32B in bf16 is 61 GiB: no card of 44 GiB holds it, four together do.
    hardware = Hardware(registry().card("L40S"), gpus_per_node=4)
    plan = choose(Request(find_shape("Qwen3-32B"), hardware, Workload(8, 8, 512, 1024)))
    assert plan.fits
    assert plan.layout.tensor_parallel >= 2
    assert plan.layout.strategy == "fsdp"


def test_where_nothing_fits_the_least_short_is_taken() -> None:
    hardware = Hardware(registry().card("T4"))
    tight = Request(find_shape("Qwen3-32B"), hardware)
    plan = choose(tight)
    assert not plan.fits
    shorts = [
        choose(replace(tight, wishes=Wishes(utilization=share, sleep_level=level))).short_bytes
        for share in (0.1, 0.5, 0.9)
        for level in (0, 1)
    ]
    assert 0 < plan.short_bytes <= min(shorts)
