"""Packed weights: the bits of plain products, and nothing of them left behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roost.engines.embedded import packed_products as module
from roost.engines.embedded.packed_products import packed_products, packs

needs_kernels = pytest.mark.skipif(
    not packs(torch.zeros(1, 1, dtype=torch.bfloat16)),
    reason="runs on a CPU that computes in bfloat16",
)


def linears(bias: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(576, 192, bias=bias), nn.Linear(192, 1536), nn.Linear(1536, 33, bias=bias)]
    return nn.Sequential(*layers).to(torch.bfloat16)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 3, 64, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_the_same_bits(rows: int, bias: bool) -> None:
    net, hidden = linears(bias), torch.randn(rows, 576, dtype=torch.bfloat16)
    with torch.no_grad():
        plain = net(hidden)
        with packed_products(net):
            assert torch.equal(net(hidden), plain)
            assert torch.equal(net(hidden[None]), plain[None])


@needs_kernels
def test_packed_weights_are_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    net, hidden = linears(), torch.randn(4, 576, dtype=torch.bfloat16)

    def plain(*_: Tensor) -> Tensor:
        raise AssertionError("a plain product")

    with torch.inference_mode(), packed_products(net):
        monkeypatch.setattr(F, "linear", plain)
        net(hidden)


@needs_kernels
def test_a_gradient_takes_the_weights_themselves() -> None:
    net, hidden = linears(), torch.randn(4, 576, dtype=torch.bfloat16)
    expected = torch.autograd.grad(net(hidden).sum(), list(net.parameters()))
    with packed_products(net):
        found = torch.autograd.grad(net(hidden).sum(), list(net.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_changed_weight_counts_once_it_is_over() -> None:
    net, hidden = linears(), torch.randn(4, 576, dtype=torch.bfloat16)
    with pytest.raises(KeyError), torch.no_grad(), packed_products(net):
        raise KeyError
    with torch.no_grad():
        before = net(hidden)
        for parameter in net.parameters():
            parameter.mul_(2)
        assert not torch.equal(net(hidden), before)
        again = hidden
        for layer in net:
            again = F.linear(again, layer.weight, layer.bias)
        assert torch.equal(net(hidden), again)


def test_what_has_no_such_kernel_is_left_alone() -> None:
    net = linears().float()
    with packed_products(net):
        assert all("forward" not in vars(layer) for layer in net)
    assert not packs(torch.zeros(1, 1))
    assert not packs(torch.zeros(1, 1, dtype=torch.float16))
    assert module.packs(torch.zeros(1, 1, device="meta", dtype=torch.bfloat16)) is False
