"""The floor: the matrix products that decoding or training cannot do without, and nothing else.

Counted are the products of every linear layer and of the output head, each with the number of rows
that it has in the real work. Attention, norms, activations, sampling, losses and the optimizer are
left out: their time is what a share of the floor is lost to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Product:
    """A linear layer's weight ``[out, in]``, and whether training wants its gradient."""

    weight: Tensor
    trained: bool


@dataclass(frozen=True, slots=True)
class Products:
    """The linear layers of a causal language model, its output head apart from the others."""

    layers: tuple[Product, ...]
    head: Product

    @classmethod
    def of(cls, module: nn.Module) -> Products:
        """Those of a transformers causal LM, or of a peft model around one: adapters included."""
        head: Any = module.get_output_embeddings()  # type: ignore[operator]
        layers = tuple(
            Product(m.weight.detach(), m.weight.requires_grad)
            for m in module.modules()
            if isinstance(m, nn.Linear) and m is not head
        )
        return cls(layers, Product(head.weight.detach(), head.weight.requires_grad))

    @torch.no_grad()
    def decode(self, prompts: Sequence[int], generations: int, tokens: int) -> None:
        """The products of one generation in which nothing stops early.

        Args:
            prompts: Tokens of each prompt; each is computed once.
            generations: Completions of each prompt.
            tokens: Of each completion. The last is never fed back, and the first is drawn from the
                prompt's last hidden state, one row of the head a prompt.
        """
        rows = len(prompts) * generations
        inputs: dict[tuple[int, int], Tensor] = {}
        self._forward(self.layers, sum(prompts), inputs)
        self._forward((self.head,), len(prompts), inputs)
        for _ in range(tokens - 1):
            self._forward((*self.layers, self.head), rows, inputs)

    @torch.no_grad()
    def train(self, packs: Sequence[tuple[int, int]]) -> None:
        """The products of one forward and backward; nothing is computed a second time.

        Args:
            packs: For each forward, its tokens, and those of them that the head is computed for.
        """
        inputs: dict[tuple[int, int], Tensor] = {}
        for tokens, scored in packs:
            for product in (*self.layers, self.head):
                rows = scored if product is self.head else tokens
                _forward_backward(product, rows, inputs)

    @staticmethod
    def _forward(
        products: Sequence[Product], rows: int, inputs: dict[tuple[int, int], Tensor]
    ) -> None:
        for product in products:
            F.linear(_rows(product.weight, rows, 1, inputs), product.weight)


def _forward_backward(product: Product, rows: int, inputs: dict[tuple[int, int], Tensor]) -> None:
    """``X W^T``; of its gradient Y the products ``Y W``, and where trained ``Y^T X``."""
    weight = product.weight
    x = _rows(weight, rows, 1, inputs)
    F.linear(x, weight)
    gradient = _rows(weight, rows, 0, inputs)
    gradient @ weight
    if product.trained:
        gradient.T @ x


def _rows(weight: Tensor, rows: int, side: int, inputs: dict[tuple[int, int], Tensor]) -> Tensor:
    """Random ``[rows, width of that side]``, made once for each shape."""
    width = weight.shape[side]
    if (rows, width) not in inputs:
        inputs[rows, width] = torch.randn(rows, width, device=weight.device).to(weight.dtype)
    return inputs[rows, width]
