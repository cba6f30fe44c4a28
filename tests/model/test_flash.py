"""The CPU kernel: the same bits in any company, and joined parts are attention over the union."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roost.engines.embedded.attention import DecodeLayout, PrefillLayout, Row
from roost.engines.embedded.cache import LayerShape, SlotCache
from roost.model.attention import AttentionParams
from roost.model.flash import CHUNK, flash, join, padded
from roost.model.packed_attention import PackedParts, packed_attention
from roost.model.parts import Segment

KV_HEADS, REPEAT, DIM = 2, 3, 64
PARAMS = AttentionParams(layer=0, scale=DIM**-0.5)


def random_tokens(count: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(count, heads, DIM, generator=generator)
        for heads in (KV_HEADS * REPEAT, KV_HEADS, KV_HEADS)
    )
    return (2 * query).to(dtype), key.to(dtype), value.to(dtype)


def segments_of(prompts: list[int], completions: list[list[int]]) -> list[Segment]:
    """Each prompt, then its completions."""
    lengths, owners = [], []
    for prompt, members in zip(prompts, completions, strict=True):
        owner = len(lengths)
        lengths += [prompt, *members]
        owners += [None, *[owner] * len(members)]
    starts = [end - n for end, n in zip(accumulate(lengths), lengths, strict=True)]
    return [Segment(*entry) for entry in zip(starts, lengths, owners, strict=True)]


def by_definition(
    query: Tensor, key: Tensor, value: Tensor, segments: list[Segment], segment: Segment
) -> Tensor:
    """Float64 output of one segment's tokens."""
    own = torch.arange(segment.start, segment.start + segment.length)
    seen, before = own, 0
    if segment.prompt is not None:
        prompt = segments[segment.prompt]
        seen = torch.cat([torch.arange(prompt.start, prompt.start + prompt.length), own])
        before = prompt.length
    keys, values = (t[seen].double().repeat_interleave(REPEAT, 1) for t in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query[own].double(), keys) * PARAMS.scale
    hidden = torch.arange(len(seen)) > torch.arange(len(own)).unsqueeze(1) + before
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


lengths = st.one_of(st.integers(1, 40), st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, 530]))


@settings(max_examples=25, deadline=None)
@given(
    groups=st.lists(st.tuples(lengths, st.lists(lengths, max_size=3)), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_parts_are_attention_with_its_gradient(
    groups: list[tuple[int, list[int]]], seed: int
) -> None:
    segments = segments_of([p for p, _ in groups], [c for _, c in groups])
    count = segments[-1].start + segments[-1].length
    inputs = [t.requires_grad_() for t in random_tokens(count, torch.float32, seed)]
    output = packed_attention(*inputs, PackedParts(segments), PARAMS.scale)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed))
    gradients = torch.autograd.grad((output * weights).sum(), inputs)

    doubles = [t.detach().double().requires_grad_() for t in inputs]
    expected = torch.cat([by_definition(*doubles, segments, s) for s in segments])
    wanted = torch.autograd.grad((expected * weights).sum(), doubles)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    whole = sum(float(g.norm()) for g in wanted)
    for ours, theirs in zip(gradients, wanted, strict=True):
        assert float((ours - theirs).norm()) <= 1e-5 * max(float(theirs.norm()), 0.1 * whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("prompts", "completions"),
    [
        ([47], [[60, 33, 1, 59]]),
        ([300, 13], [[20], [5, 90]]),
        ([513, 9, 129], [[3, 3], [300, 7], [250]]),
    ],
)
def test_engine_and_trainer_compute_the_same_bits(
    dtype: torch.dtype, prompts: list[int], completions: list[list[int]]
) -> None:
    """Prefill and then every decode step, beside one pack over all tokens.

    In float32, whose products this kernel takes in another order for a few rows, nearly the same.
    """
    exact = dtype == torch.bfloat16

    def same(one: Tensor, other: Tensor) -> bool:
        return torch.equal(one, other) if exact else torch.allclose(one, other, 1e-5, 1e-6)

    segments = segments_of(prompts, completions)
    query, key, value = random_tokens(segments[-1].start + segments[-1].length, dtype, seed=1)
    packed = packed_attention(query, key, value, PackedParts(segments), PARAMS.scale)

    shape = [LayerShape(KV_HEADS, DIM, DIM)]
    place = (dtype, torch.device("cpu"))
    roots = [s for s in segments if s.prompt is None]
    rows = [s for s in segments if s.prompt is not None]
    prompt_cache = SlotCache(shape, len(roots), padded(max(prompts)), *place)
    own = SlotCache(shape, len(rows), padded(max(s.length for s in rows)), *place)
    inside = torch.cat([torch.arange(s.start, s.start + s.length) for s in roots])
    prefill = PrefillLayout(prompt_cache, range(len(roots)), prompts)
    output = prefill.attend(query[inside], key[inside], value[inside], PARAMS)
    assert same(output, packed[inside])

    for time in range(max(s.length for s in rows)):
        running = [s for s in rows if s.length > time]
        slots = [rows.index(s) for s in running]
        if slots != list(range(len(slots))):
            # Slots stay packed: move those that go on to the front, as the engine does.
            for target, source in enumerate(slots):
                own.move(source, target, time)
            rows = [*running, *[s for s in rows if s.length <= time]]
        table = [Row(roots.index(segments[s.prompt]), segments[s.prompt].length, time)
                 for s in running if s.prompt is not None]  # fmt: skip
        tokens = torch.tensor([s.start + time for s in running])
        step = DecodeLayout(prompt_cache, own, table)
        output = step.attend(query[tokens], key[tokens], value[tokens], PARAMS)
        assert same(output, packed[tokens]), time


def test_a_call_takes_aligned_keys_only() -> None:
    query = torch.randn(1, 1, 4, DIM)
    for columns in (16, 160, CHUNK + 32):
        key = torch.randn(1, 1, columns, DIM)
        with pytest.raises(ValueError, match=f"{columns} keys in one call"):
            flash(query, key, key, torch.zeros(1, 1, 1, columns), 1.0, causal=False)


def test_joining_with_nothing_changes_no_bit() -> None:
    part, lse = torch.randn(3, 5).bfloat16(), torch.randn(3)
    total, total_lse = join(torch.zeros(3, 5), torch.full((3,), -torch.inf), part, lse)
    assert torch.equal(total, part.float())
    assert torch.equal(total_lse, lse)
