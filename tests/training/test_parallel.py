from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from roost.training.parallel import ALONE, RankFailed, Ranks, balanced


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_item_goes_to_one_rank(world: int) -> None:
    items, costs = list("abcdefg"), [3.0, 1.0, 9.0, 2.0, 2.0, 1.0, 4.0]
    for share in (Ranks.divide, Ranks.stretch):
        shares = [share(Ranks(rank, world), items, costs) for rank in range(world)]
        assert sorted(item for part in shares for item in part) == items
        assert all(part == sorted(part) for part in shares)


def test_a_division_is_balanced_by_cost() -> None:
    costs = [9.0, 3.0, 3.0, 3.0]
    shares = [Ranks(rank, 2).divide(costs, costs) for rank in range(2)]
    assert [sum(share) for share in shares] == [9.0, 9.0]


def test_a_stretch_keeps_neighbours_together() -> None:
    shares = [Ranks(rank, 2).stretch(range(6), [1.0] * 6) for rank in range(2)]
    assert shares == [[0, 1, 2], [3, 4, 5]]


def test_more_ranks_than_items_leave_some_without() -> None:
    shares = [Ranks(rank, 3).divide(["only"], [1.0]) for rank in range(3)]
    assert shares == [["only"], [], []]


def test_nothing_to_share_is_no_error() -> None:
    assert Ranks(1, 2).stretch([], []) == []
    assert Ranks(1, 2).divide([], []) == []


def test_a_rank_that_does_not_come_is_named_in_time() -> None:
    with pytest.raises(RankFailed, match=r"waited 0 s for samples: rank 1, 2 of 3 did not answer"):
        Ranks(0, 3, _store(), wait_s=0.05).gather(1, "samples")


def test_a_rank_that_failed_is_named_before_the_deadline() -> None:
    store = _store()
    Ranks(1, 2, store).fail(RuntimeError("no memory"))
    with pytest.raises(RankFailed, match=r"rank 1 of 2 failed: RuntimeError\('no memory'\)"):
        Ranks(0, 2, store).sum_gradients({"w": torch.ones(1)})


def test_a_failure_is_told_once_by_the_rank_that_had_it() -> None:
    """One that ends because another failed does not take the blame."""
    store = _store()
    Ranks(1, 2, store).fail(RuntimeError("first"))
    Ranks(0, 2, store).fail(RankFailed("rank 1 of 2 failed"))
    with pytest.raises(RankFailed, match="rank 1 of 2 failed: RuntimeError"):
        Ranks(0, 2, store).gather(1, "samples")


def test_one_process_exchanges_with_nobody() -> None:
    gradient = torch.ones(2)
    ALONE.sum_gradients({"w": gradient})
    assert gradient.tolist() == [1.0, 1.0]
    assert ALONE.gather("x", "samples") == ["x"]
    assert ALONE.sum({"a": 2.0}, [], "sums") == {"a": 2.0}


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 6))
def test_no_part_is_more_than_an_item_above_another(costs: list[int], parts: int) -> None:
    """However uneven: each item went to the part that had least."""
    shares = balanced(range(len(costs)), costs, parts)
    assert sorted(index for share in shares for index in share) == list(range(len(costs)))
    loads = [sum(costs[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_ranks_with_one_engine_get_the_same_prompts() -> None:
    ranks = [Ranks(rank, 6, tensor_parallel=2) for rank in range(6)]
    shares = [one.divide_among_engines(list("abcdef"), [1.0] * 6) for one in ranks]
    assert shares[0] == shares[1]
    assert sorted(shares[0] + shares[2] + shares[4]) == list("abcdef")
    assert [(one.engine, one.shard) for one in ranks[:4]] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def _store() -> HashStore:
    store = HashStore()
    store.set_timeout(timedelta(seconds=1))
    return store
