"""Packs hold every sample once, every prompt once a pack, and stay within their budget."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.model.parts import PREFIX, Segment
from roost.training.packing import Completion, Pack, build_packs


def numbered(
    prompt_lengths: Sequence[int], completion_lengths: Sequence[Sequence[int]]
) -> tuple[list[list[int]], list[Completion]]:
    """Prompts and completions of these lengths in which no token id comes twice."""
    following = iter(range(10_000))
    prompts = [[next(following) for _ in range(length)] for length in prompt_lengths]
    completions = []
    for group, lengths in enumerate(completion_lengths):
        for length in lengths:
            ids = [next(following) for _ in range(length)]
            completions.append(Completion(group, len(completions), ids))
    return prompts, completions


def assert_computes(
    packs: Sequence[Pack], prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
) -> None:
    """Each sample's tokens are predicted once, by the token before, which sees what it should."""
    assert sorted(i for pack in packs for i in pack.samples) == list(range(len(completions)))
    for pack in packs:
        assert len(pack) == len(pack.token_ids) == len(pack.positions)
        assert len(pack.reads) == len(pack.targets)
        taken = 0
        for index in pack.samples:
            completion = completions[index]
            prompt = list(prompts[completion.group])
            reads = pack.reads[taken : taken + len(completion.token_ids)]
            targets = pack.targets[taken : taken + len(completion.token_ids)]
            taken += len(completion.token_ids)
            assert targets == list(completion.token_ids)
            for number, read in enumerate(reads):
                tokens, positions = visible_tokens(pack, read, prompt)
                assert tokens == [*prompt, *targets[:number]]
                assert positions == list(range(len(prompt) + number))
        assert taken == len(pack.targets)


def visible_tokens(
    pack: Pack, index: int, divided_prompt: list[int]
) -> tuple[list[int], list[int]]:
    """Tokens that a token attends to, and their positions: its prompt's, then its own segment's.

    The hidden state behind the row's end is that of a divided group's prompt.
    """
    outside = divided_prompt, list(range(len(divided_prompt)))
    if index == len(pack):
        assert pack.divided is not None
        return outside
    [segment] = [s for s in pack.segments if s.start <= index < s.start + s.length]
    seen = list(range(segment.start, index + 1))
    before: tuple[list[int], list[int]] = ([], [])
    if segment.prompt == PREFIX:
        assert pack.divided is not None
        before = outside
    elif segment.prompt is not None:
        prompt = pack.segments[segment.prompt]
        assert prompt.prompt is None
        seen = [*range(prompt.start, prompt.start + prompt.length), *seen]
    return (
        before[0] + [pack.token_ids[i] for i in seen],
        before[1] + [pack.positions[i] for i in seen],
    )


def assert_thrifty(
    packs: Sequence[Pack],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Completion],
    budget: int,
) -> None:
    """Prompts once in all, segments without gaps, and the budget kept where it can be."""
    heads = [
        tuple(pack.token_ids[s.start : s.start + s.length])
        for pack in packs
        for s in pack.segments
        if s.prompt is None
    ]
    divided = [pack.divided for pack in packs if pack.divided is not None]
    # The pieces of a group follow one another, and there are at least two.
    runs = [group for group, _ in groupby(divided)]
    assert len(runs) == len(set(runs))
    assert all(divided.count(group) > 1 for group in runs)
    heads += [tuple(prompts[group]) for group in runs]
    present = {completion.group for completion in completions}
    assert Counter(heads) == Counter(tuple(prompts[g]) for g in present)
    for pack in packs:
        groups = {completions[i].group for i in pack.samples}
        assert pack.divided is None or groups == {pack.divided}
        following = 0
        for segment in pack.segments:
            assert segment.start == following
            assert segment.length > 0
            following += segment.length
        assert following == len(pack)
        held = len(pack) if pack.divided is None else len(pack) + len(prompts[pack.divided])
        assert len(pack) > 0
        if held > budget:
            # Only a sample that is too long by itself may exceed it, and nothing long beside it.
            longest = max(len(completions[i].token_ids) for i in pack.samples)
            [group] = groups
            assert held == len(prompts[group]) + max(0, longest - 1)


lengths = st.lists(st.integers(0, 9), min_size=1, max_size=7)
groups = st.lists(st.tuples(st.integers(1, 12), lengths), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(groups, st.integers(1, 50), st.randoms(use_true_random=False))
def test_any_groups_and_any_budget(
    shape: list[tuple[int, list[int]]], budget: int, rng: random.Random
) -> None:
    prompts, completions = numbered([p for p, _ in shape], [c for _, c in shape])
    shuffled = list(completions)
    rng.shuffle(shuffled)
    packs = build_packs(prompts, shuffled, budget)
    assert_computes(packs, prompts, completions)
    assert_thrifty(packs, prompts, completions, budget)


def test_the_example_of_the_module() -> None:
    completions = [Completion(0, 0, [7, 8, 2]), Completion(0, 1, [9])]
    [pack] = build_packs([[5, 6]], completions, budget=100)
    assert pack.token_ids == [5, 6, 7, 8]
    assert pack.positions == [0, 1, 2, 3]
    assert pack.reads == [1, 2, 3, 1]
    assert pack.targets == [7, 8, 2, 9]
    assert pack.samples == [0, 1]
    assert pack.segments == [Segment(0, 2), Segment(2, 2, prompt=0)]


def test_an_empty_completion_is_kept_without_a_token() -> None:
    completions = [Completion(0, 0, []), Completion(0, 1, [9, 8]), Completion(0, 2, [])]
    [pack] = build_packs([[5, 6]], completions, budget=100)
    assert pack.samples == [0, 1, 2]
    assert pack.targets == [9, 8]
    assert pack.reads == [1, 2]
    assert len(pack) == 3


def test_a_prompt_of_one_token() -> None:
    [pack] = build_packs([[5]], [Completion(0, 0, [7, 8])], budget=100)
    assert pack.token_ids == [5, 7]
    assert pack.reads == [0, 1]


def test_a_prompt_that_fills_the_budget_has_room_for_first_tokens_only() -> None:
    prompts, completions = numbered([10], [[1, 1, 2, 1, 3]])
    packs = build_packs(prompts, completions, budget=10)
    assert [(pack.samples, len(pack)) for pack in packs] == [([2, 0, 1, 3], 1), ([4], 2)]
    assert_computes(packs, prompts, completions)
    assert_thrifty(packs, prompts, completions, 10)


def test_a_group_that_fits_stays_whole() -> None:
    prompts, completions = numbered([4, 4], [[3, 3, 3], [3, 3]])
    packs = build_packs(prompts, completions, budget=10)
    assert sorted(pack.samples for pack in packs) == [[0, 1, 2], [3, 4]]


def test_small_groups_share_a_pack() -> None:
    prompts, completions = numbered([2, 2, 2], [[3], [3], [3]])
    [pack] = build_packs(prompts, completions, budget=12)
    assert len(pack) == 12


def test_pieces_of_a_divided_group_hold_completions_alone() -> None:
    """Parts of 50, 80 and 20 tokens beside a prompt of 10: the first and last fit together."""
    prompts, completions = numbered([10], [[51, 81, 21]])
    packs = build_packs(prompts, completions, budget=100)
    assert [(pack.divided, len(pack)) for pack in packs] == [(0, 70), (0, 80)]


def test_tensors_are_int64() -> None:
    [pack] = build_packs([[5, 6]], [Completion(0, 0, [7, 8])], budget=9)
    tensors = pack.tensors(torch.device("cpu"))
    assert [t.tolist() for t in tensors] == [[5, 6, 7], [0, 1, 2], [1, 2], [7, 8]]
    assert {t.dtype for t in tensors} == {torch.int64}


def test_the_same_groups_give_the_same_packs() -> None:
    prompts, completions = numbered([4, 2, 9], [[3, 8, 1], [9, 9], [2, 2, 4]])
    assert build_packs(prompts, completions, 20) == build_packs(prompts, completions, 20)
