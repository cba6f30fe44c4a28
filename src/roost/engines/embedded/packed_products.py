"""Weights laid out as a CPU's bfloat16 kernels read them, for the length of one ``generate`` call.

A product with a plain weight brings it into blocks first, each time. A decode step has so few rows
that this is a fifth of its products' time at 64 rows and half of it at a few
(``benchmarks/packed_products.py``). So a call
does it once for each weight, into a copy that it drops at its end: what the trainer needs later is
more than that. The bits of a product are the same (``tests/engines/test_packed_products.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def packs(weight: Tensor) -> bool:
    """Whether there are such kernels for a weight: in bfloat16 on a CPU that computes in it."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


@contextmanager
def packed_products(module: nn.Module) -> Iterator[None]:
    """Within it, all linears of a module take their products from packed copies of their weights.

    The weights must not change meanwhile. Where a gradient is recorded, they are used as they are.

    Args:
        module: Its linears are called as modules, not by their weights.
    """
    linears = [m for m in module.modules() if type(m) is nn.Linear and packs(m.weight)]
    for linear in linears:
        linear.forward = partial(  # type: ignore[method-assign]
            _product, linear, torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        )
    try:
        yield
    finally:
        for linear in linears:
            del linear.forward


def _product(linear: nn.Linear, packed: Tensor, rows: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return F.linear(rows, linear.weight, linear.bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, linear.bias, "none", [], "")
    return result
