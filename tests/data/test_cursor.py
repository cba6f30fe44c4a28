from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.data.cursor import PromptCursor
from roost.errors import DataError
from roost.samples import Prompt


def prompts(count: int) -> list[Prompt]:
    return [Prompt(i, (i,), str(i)) for i in range(count)]


sizes = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes, st.booleans(), st.integers(0, 5), st.integers(1, 40))
def test_no_batch_holds_a_prompt_twice(
    size: tuple[int, int], shuffle: bool, seed: int, batches: int
) -> None:
    cursor = PromptCursor(prompts(size[0]), size[1], shuffle=shuffle, seed=seed)
    for _ in range(batches):
        batch = [prompt.id for prompt in cursor.next_batch()]
        assert len(batch) == len(set(batch)) == size[1]


@given(sizes, st.booleans(), st.integers(0, 5), st.integers(1, 6))
def test_every_prompt_once_an_epoch(
    size: tuple[int, int], shuffle: bool, seed: int, epochs: int
) -> None:
    count, batch = size
    cursor = PromptCursor(prompts(count), batch, shuffle=shuffle, seed=seed)
    drawn = [p.id for _ in range(-(-count * epochs // batch)) for p in cursor.next_batch()]
    for epoch in range(epochs):
        assert Counter(drawn[epoch * count : (epoch + 1) * count]) == Counter(range(count))


@given(sizes, st.booleans(), st.integers(0, 5), st.integers(0, 20), st.integers(1, 20))
def test_resumed_anywhere_goes_on_alike(
    size: tuple[int, int], shuffle: bool, seed: int, before: int, after: int
) -> None:
    cursor = PromptCursor(prompts(size[0]), size[1], shuffle=shuffle, seed=seed)
    for _ in range(before):
        cursor.next_batch()
    resumed = PromptCursor(prompts(size[0]), size[1], shuffle=shuffle, seed=seed)
    resumed.load_state_dict(cursor.state_dict())
    for _ in range(after):
        assert cursor.next_batch() == resumed.next_batch()


def test_order_is_kept_without_shuffling() -> None:
    cursor = PromptCursor(prompts(4), 2, shuffle=False, seed=0)
    assert [[p.id for p in cursor.next_batch()] for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]


def test_seeds_and_epochs_differ() -> None:
    def epoch(seed: int, skip: int) -> list[int]:
        cursor = PromptCursor(prompts(50), 50, shuffle=True, seed=seed)
        for _ in range(skip):
            cursor.next_batch()
        return [p.id for p in cursor.next_batch()]

    assert epoch(0, 0) == epoch(0, 0)
    assert epoch(0, 0) != epoch(1, 0)
    assert epoch(0, 0) != epoch(0, 1)


def test_too_few_prompts() -> None:
    with pytest.raises(DataError, match=r"prompts_per_step = 3: there are only 2 prompts"):
        PromptCursor(prompts(2), 3, shuffle=True, seed=0)
