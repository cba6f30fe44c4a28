"""The path of GPUs, by contract: what torch's kernel is called with, and what that call means.

The kernel runs on a GPU only. In its place stands its documentation, in float64: row i of queries
sees row i of keys, aligned at the end, and of those the ones within the window.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from roost.errors import ModelError
from roost.model.attention import AttentionParams
from roost.model.varlen import VarlenIndex
from roost.training.attention import PackLayout
from support.dense_attention import by_definition, segments_of
from support.fake_gpu import OnGpu, VarlenKernel

CPU = torch.device("cpu")
DIM = 16
PACK = [(5, [3, 1, 9]), (1, [2]), (7, [])]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> VarlenKernel:
    stand_in = VarlenKernel()
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    return stand_in


def random_tensors(tokens: int, heads: int, kv_heads: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        (2 * torch.randn(tokens, h, DIM, generator=generator)).to(dtype).requires_grad_()
        for h in (heads, kv_heads, kv_heads)
    ]


def attend(layout: PackLayout, tensors: list[Tensor], params: AttentionParams) -> Tensor:
    query, key, value = tensors
    return layout.attend(query.as_subclass(OnGpu), key, value, params).as_subclass(Tensor)


@pytest.mark.parametrize("window", [None, 1, 2, 4, 8, 13, 14, 50])
@pytest.mark.parametrize("heads", [(6, 2), (3, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_call_means_the_packs_attention(
    kernel: VarlenKernel, window: int | None, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    segments = segments_of(PACK)
    tensors = random_tensors(28, *heads, dtype)
    params = AttentionParams(layer=0, scale=0.17, window=window)
    output = attend(PackLayout(segments, CPU), tensors, params)
    expected = by_definition(tensors, segments, params)
    torch.testing.assert_close(output, expected)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9)).double()
    found, wanted = (
        torch.autograd.grad((result * weight).sum(), tensors) for result in (output, expected)
    )
    for pair in zip(found, wanted, strict=True):
        torch.testing.assert_close(*pair, rtol=0.02, atol=0.02)
    assert len(kernel.calls) == 1


def test_an_older_torch_is_given_a_key_head_for_each_query_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = VarlenKernel(lacks="enable_gqa")
    monkeypatch.setattr(varlen, "varlen_attn", older)
    segments, tensors = segments_of(PACK), random_tensors(28, 6, 2, torch.bfloat16)
    params = AttentionParams(layer=0, scale=0.17)
    output = attend(PackLayout(segments, CPU), tensors, params)
    torch.testing.assert_close(output, by_definition(tensors, segments, params))
    assert [call["key"].shape[1] for call in older.calls] == [6]


def test_a_torch_that_is_too_old_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", VarlenKernel(lacks="window_size"))
    tensors = random_tensors(28, 2, 2, torch.bfloat16)
    with pytest.raises(ModelError, match=r"torch 2\..*Roost needs torch 2.11 or newer"):
        attend(PackLayout(segments_of(PACK), CPU), tensors, AttentionParams(layer=0, scale=0.2))


def test_cumulative_lengths_of_the_example() -> None:
    """A prompt of 2 with completions of 3 and 1, then a prompt of 4."""
    index = VarlenIndex.of(segments_of([(2, [3, 1]), (4, [])]), CPU)
    assert index.query_ends.tolist() == [0, 2, 5, 6, 10]
    assert index.key_ends.tolist() == [0, 2, 7, 10, 14]
    assert index.keys.tolist() == [0, 1, *[0, 1, 2, 3, 4], *[0, 1, 5], *[6, 7, 8, 9]]
    assert (index.longest_query, index.longest_key) == (4, 5)


def test_a_window_that_hides_nothing_is_left_out(kernel: VarlenKernel) -> None:
    """The longest sequence has 14 tokens: the plain causal kernel is the faster one."""
    layout = PackLayout(segments_of(PACK), CPU)
    tensors = random_tensors(28, 2, 2, torch.bfloat16)
    for window in (14, 13):
        attend(layout, tensors, AttentionParams(layer=0, scale=0.2, window=window))
    assert [call["window_size"] for call in kernel.calls] == [(-1, 0), (12, 0)]


def test_layers_share_one_index(kernel: VarlenKernel) -> None:
    layout = PackLayout(segments_of(PACK), CPU)
    tensors = random_tensors(28, 2, 2, torch.bfloat16)
    for layer in range(2):
        attend(layout, tensors, AttentionParams(layer=layer, scale=0.2))
    first, second = kernel.calls
    assert first["cu_seq_k"] is second["cu_seq_k"]
    assert first["cu_seq_q"] is second["cu_seq_q"]


@pytest.mark.parametrize(
    ("dtype", "softcap"),
    [(torch.float32, None), (torch.float64, None), (torch.bfloat16, 1.5)],
)
def test_what_the_kernel_cannot_do_goes_by_definition(
    kernel: VarlenKernel, dtype: torch.dtype, softcap: float | None
) -> None:
    """It takes half precisions only and has no soft cap."""
    segments = segments_of(PACK)
    tensors = random_tensors(28, 6, 2, dtype)
    params = AttentionParams(layer=0, scale=0.17, window=4, softcap=softcap)
    output = attend(PackLayout(segments, CPU), tensors, params)
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-5
    expected = by_definition(tensors, segments, params).to(dtype)
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)
    assert kernel.calls == []
