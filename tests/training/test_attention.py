"""A pack's attention against its definition: one dense mask over all tokens, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roost.model.attention import AttentionParams
from roost.model.parts import Segment
from roost.training.attention import PackLayout
from support.dense_attention import by_definition, segments_of

CPU = torch.device("cpu")
DIM = 16


def random_tensors(
    tokens: int, heads: int, kv_heads: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Tensor]:
    """Queries, keys and values with gradients, and large scores."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (2 * torch.randn(tokens, h, DIM, generator=generator)).to(dtype).requires_grad_()
        for h in (heads, kv_heads, kv_heads)
    ]


def assert_as_defined(
    segments: list[Segment],
    params: AttentionParams,
    heads: tuple[int, int] = (6, 2),
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> None:
    """Output and all three gradients."""
    tokens = sum(s.length for s in segments)
    tensors = random_tensors(tokens, *heads, dtype)
    output = PackLayout(segments, CPU).attend(tensors[0], tensors[1], tensors[2], params)
    assert output.dtype == dtype
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(9))
    gradients = torch.autograd.grad((output * weight.to(dtype)).sum(), tensors)
    expected = by_definition(tensors, segments, params)
    plain = torch.autograd.grad((expected * weight.double()).sum(), tensors)
    assert_near(output, expected, tolerance)
    for gradient, wanted in zip(gradients, plain, strict=True):
        assert_near(gradient, wanted, tolerance)


def assert_near(one: Tensor, other: Tensor, tolerance: float) -> None:
    """By norm. A token that sees only itself has a gradient of 0, which rounding need not hit."""
    one, other = one.detach().double(), other.detach().double()
    assert float((one - other).norm()) < tolerance * max(float(other.norm()), 1.0)


PLAIN = AttentionParams(layer=0, scale=DIM**-0.5)
WINDOWED = AttentionParams(layer=0, scale=DIM**-0.5, window=4)
CAPPED = AttentionParams(layer=0, scale=0.3, softcap=1.5)
BOTH = AttentionParams(layer=0, scale=0.3, window=3, softcap=1.5)
PACK = [(5, [3, 1, 9]), (1, [2]), (7, [])]
"""A prompt with three completions, a prompt of one token, and one of nothing but first tokens."""


@pytest.mark.parametrize("params", [PLAIN, WINDOWED, CAPPED, BOTH])
@pytest.mark.parametrize("heads", [(6, 2), (3, 3), (4, 1)])
def test_output_and_gradients(params: AttentionParams, heads: tuple[int, int]) -> None:
    assert_as_defined(segments_of(PACK), params, heads)


@pytest.mark.parametrize("params", [PLAIN, WINDOWED, CAPPED, BOTH])
def test_float64_is_exact(params: AttentionParams) -> None:
    assert_as_defined(segments_of(PACK), params, dtype=torch.float64, tolerance=1e-13)


@pytest.mark.parametrize("params", [PLAIN, WINDOWED, CAPPED])
def test_bfloat16_is_rounded_and_no_worse(params: AttentionParams) -> None:
    assert_as_defined(segments_of(PACK), params, dtype=torch.bfloat16, tolerance=1e-2)


def test_segments_longer_than_a_kernel_call() -> None:
    assert_as_defined(segments_of([(300, [140, 270])]), PLAIN, heads=(2, 1))


@pytest.mark.parametrize(("window", "shorter"), [(7, True), (8, False), (100, False)])
def test_a_window_counts_the_prompt(window: int, shorter: bool) -> None:
    """The longest sequence has 5 + 3 tokens: a window of 7 hides its first from its last."""
    segments = segments_of([(5, [3])])
    query, key, value = random_tensors(8, 2, 2)
    narrow = AttentionParams(layer=0, scale=0.1, window=window)
    layout = PackLayout(segments, CPU)
    with torch.no_grad():
        output = layout.attend(query, key, value, narrow)
        whole = layout.attend(query, key, value, AttentionParams(layer=0, scale=0.1))
    torch.testing.assert_close(output[:7], whole[:7])
    assert torch.allclose(output[7], whole[7], rtol=1e-4) is not shorter
    assert_as_defined(segments, narrow, heads=(2, 2))


def test_one_layout_serves_layers_of_both_kinds() -> None:
    """Gemma's layers alternate between a window and none."""
    segments = segments_of(PACK)
    tensors = random_tensors(sum(s.length for s in segments), 6, 2)
    layout = PackLayout(segments, CPU)
    for params in (PLAIN, WINDOWED, PLAIN):
        with torch.no_grad():
            output = layout.attend(tensors[0], tensors[1], tensors[2], params)
            assert_near(output, by_definition(tensors, segments, params), 1e-5)


def test_a_completion_is_alone_with_its_prompt() -> None:
    """Other completions and groups may change: not a bit of it follows."""
    segments = segments_of(PACK)
    query, key, value = (t.detach() for t in random_tensors(28, 6, 2))
    layout = PackLayout(segments, CPU)
    before = layout.attend(query, key, value, PLAIN)
    changed = [t.clone() for t in (query, key, value)]
    for tensor in changed:
        tensor[8:] = 3.0
    after = layout.attend(changed[0], changed[1], changed[2], PLAIN)
    assert torch.equal(before[:8], after[:8])
    assert not torch.equal(before[8:], after[8:])


lengths = st.lists(st.integers(1, 9), max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), lengths), min_size=1, max_size=4),
    st.sampled_from([None, 1, 2, 5, 9]),
    st.sampled_from([None, 0.7]),
)
def test_any_pack(
    groups: list[tuple[int, list[int]]], window: int | None, softcap: float | None
) -> None:
    params = AttentionParams(layer=0, scale=0.4, window=window, softcap=softcap)
    assert_as_defined(segments_of(groups), params, heads=(4, 2))
