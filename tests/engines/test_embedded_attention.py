"""The engine's attention against plain softmax attention in float64."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import varlen

from roost.engines.embedded.attention import DecodeLayout, PrefillLayout, Row
from roost.engines.embedded.cache import LayerShape, SlotCache
from roost.engines.embedded.fixed import StepInputs
from roost.engines.embedded.fixed_attention import FixedLayout
from roost.engines.embedded.partial import attention_parts
from roost.engines.embedded.scheduler import RunningGroup, RunningSample
from roost.model.attention import AttentionParams
from roost.model.flash import MASKED, join
from roost.samples import Prompt
from support.fake_gpu import DefinedKernel, OnGpu, VarlenKernel

KV_HEADS, REPEATS, DIM = 2, 3, 8
SHAPE = [LayerShape(KV_HEADS, DIM, DIM)]


def make_cache(slots, capacity):
    return SlotCache(SHAPE, slots, capacity, torch.float32, torch.device("cpu"))


def reference(query, keys, values, params, position):
    """One query ``[heads, dim]`` at a position over its sequence ``[tokens, kv_heads, dim]``."""
    k = keys.double().repeat_interleave(REPEATS, dim=1)
    v = values.double().repeat_interleave(REPEATS, dim=1)
    scores = torch.einsum("hd,thd->ht", query.double(), k) * params.scale
    if params.softcap is not None:
        scores = params.softcap * torch.tanh(scores / params.softcap)
    if params.window is not None:
        scores[:, : max(0, position - params.window + 1)] = -torch.inf
    return torch.einsum("ht,thd->hd", scores.softmax(-1), v)


params_of_layers = st.builds(
    AttentionParams,
    layer=st.just(0),
    scale=st.sampled_from([0.2, 1.0]),
    window=st.sampled_from([None, 1, 3, 50]),
    softcap=st.sampled_from([None, 1.5]),
)


@settings(max_examples=60, deadline=None)
@given(
    params=params_of_layers,
    prompt_lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=7),
    seed=st.integers(0, 1000),
)
def test_prefill_then_decode_equals_plain_attention(params, prompt_lengths, rows, seed):
    generator = torch.Generator().manual_seed(seed)

    def tokens(count):
        return [
            torch.randn(count, heads, DIM, generator=generator)
            for heads in (KV_HEADS * REPEATS, KV_HEADS, KV_HEADS)
        ]

    prompts, own = make_cache(len(prompt_lengths), 32), make_cache(len(rows), 32)
    parts = [tokens(length) for length in prompt_lengths]
    layout = PrefillLayout(prompts, range(len(parts)), prompt_lengths)
    output = layout.attend(*(torch.cat(column) for column in zip(*parts, strict=True)), params)
    expected = [
        reference(q[i], k[: i + 1], v[: i + 1], params, i)
        for q, k, v in parts
        for i in range(len(q))
    ]
    torch.testing.assert_close(output.double(), torch.stack(expected), rtol=0, atol=1e-5)

    rows = [(group % len(parts), length) for group, length in rows]
    completions = [tokens(length + 1) for _, length in rows]
    for row, (_, length) in enumerate(rows):
        own.keys[0][row, :, :length] = completions[row][1][:-1].transpose(0, 1)
        own.values[0][row, :, :length] = completions[row][2][:-1].transpose(0, 1)
    layout = DecodeLayout(prompts, own, [Row(g, prompt_lengths[g], n) for g, n in rows])
    newest = [torch.stack([c[i][-1] for c in completions]) for i in range(3)]
    output = layout.attend(*newest, params)
    expected = [
        reference(
            q[-1],
            torch.cat([parts[g][1], k]),
            torch.cat([parts[g][2], v]),
            params,
            prompt_lengths[g] + n,
        )
        for (g, n), (q, k, v) in zip(rows, completions, strict=True)
    ]
    torch.testing.assert_close(output.double(), torch.stack(expected), rtol=0, atol=1e-5)
    for kernel in (None, DefinedKernel()):
        output = attend_fixed(prompts, own, rows, prompt_lengths, newest, params, kernel)
        torch.testing.assert_close(output.double(), torch.stack(expected), rtol=0, atol=1e-5)


def attend_fixed(prompts, own, rows, prompt_lengths, newest, params, kernel):
    """The same step in a fixed shape, with a row of padding."""
    groups = [
        RunningGroup(Prompt(slot, (3,) * length, ""), slot, deque())
        for slot, length in enumerate(prompt_lengths)
    ]
    running = [
        RunningSample(groups[g], i, iter(()), token_ids=[3] * (n + 1))
        for i, (g, n) in enumerate(rows)
    ]
    width = len(rows) + 1
    own = _copied(own, slots=width)
    inputs = StepInputs(width, prompts.slots, torch.device("cpu"))
    inputs.load(running)
    layout = FixedLayout(_copied(prompts, prompts.slots), own, inputs, own.capacity, kernel)
    padded = [torch.cat([tensor, tensor[:1]]) for tensor in newest]
    output = layout.attend(*padded, params)
    assert bool(output.isfinite().all()), "padding must not come to hold NaN, which spreads"
    return output[:-1]


def _copied(cache, slots):
    """As a GPU holds it, a token's heads side by side."""
    copy = SlotCache(
        SHAPE, slots, cache.capacity, torch.float32, torch.device("cpu"), token_major=True
    )
    for tensor, old in zip((*copy.keys, *copy.values), (*cache.keys, *cache.values), strict=True):
        tensor[: len(old)] = old
    return copy


@pytest.mark.parametrize("window", [None, 2, 50])
def test_prefill_on_a_gpu_is_one_kernel_call(window, monkeypatch):
    kernel = VarlenKernel()
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    lengths, generator = [5, 1, 9], torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(sum(lengths), heads, DIM, generator=generator).to(torch.bfloat16)
        for heads in (KV_HEADS * REPEATS, KV_HEADS, KV_HEADS)
    )
    params = AttentionParams(layer=0, scale=0.3, window=window)
    cache = make_cache(3, 32)
    layout = PrefillLayout(cache, range(3), lengths)
    output = layout.attend(query.as_subclass(OnGpu), key, value, params).as_subclass(torch.Tensor)
    assert [call["window_size"] for call in kernel.calls] == [(1 if window == 2 else -1, 0)]
    start = 0
    for slot, length in enumerate(lengths):
        k, v = key[start : start + length], value[start : start + length]
        torch.testing.assert_close(cache.keys[0][slot, :, :length], k.transpose(0, 1).float())
        for i in range(length):
            wanted = reference(query[start + i], k[: i + 1], v[: i + 1], params, i)
            torch.testing.assert_close(output[start + i].double(), wanted, rtol=0.02, atol=0.02)
        start += length


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_part_without_a_visible_key_weighs_nothing(softcap, dtype):
    query, key, value = (torch.randn(2, 2, n, 8).to(dtype) for n in (3, 32, 32))
    seen, hidden = torch.zeros(2, 1, 1, 32), torch.full((2, 1, 1, 32), MASKED)
    ((nothing, nothing_lse),) = attention_parts(query, key, value, hidden, 0.5, softcap)
    ((whole, whole_lse),) = attention_parts(query, key, value, seen, 0.5, softcap)
    whole = whole.float()
    assert torch.equal(join(whole, whole_lse, nothing, nothing_lse)[0], whole)
    assert torch.equal(join(nothing.float(), nothing_lse, whole, whole_lse)[0], whole)


def test_moving_a_slot_copies_its_used_part():
    cache = make_cache(3, 4)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape))
    before = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
    cache.move(2, 0, 3)
    for tensor, old in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(tensor[0, :, :3], old[2, :, :3])
        assert torch.equal(tensor[0, :, 3:], old[0, :, 3:])
        assert torch.equal(tensor[1:], old[1:])


def test_cache_starts_at_zero_and_knows_its_size():
    cache = make_cache(3, 4)
    assert all(not tensor.any() for tensor in (*cache.keys, *cache.values))
    assert cache.nbytes == 2 * 3 * KV_HEADS * 4 * DIM * 4
