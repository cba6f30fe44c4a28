"""Log-probabilities and entropy from hidden states, without ever holding the logits in float32.

Forward passes over tiles of the vocabulary and keeps a running maximum and sum (online
log-sum-exp). What backward needs of a tile depends on what is trained:

- with the head trained, its products, which are kept up to ``KEPT_BYTES`` and else taken again;
- with the head frozen, as under an adapter, nothing. A token's gradient to its hidden state is its
  loss gradient times ``pull = d logprob / d hidden``, and forward sums that as it passes, as flash
  attention sums values (arXiv:2205.14135, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from roost.model.head import OutputHead

TOKEN_CHUNK = 1024
"""Tokens of a tile."""
VOCABULARY_TILE = 4096
"""Vocabulary entries of a tile; with TOKEN_CHUNK, 16 MiB in float32."""
KEPT_BYTES = 128 * 2**20
"""Products kept between forward and backward, at most: those of 1,024 tokens with a vocabulary of
65,536 in bfloat16."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What turns a product into a log-probability's logit, besides the weights."""

    scale: float
    softcap: float | None
    temperature: float

    def logits(self, product: Tensor) -> tuple[Tensor, Tensor | None]:
        """Float32 logits at the temperature, and tanh of the soft cap where there is one."""
        logits = product.to(_wide(product))
        if self.scale != 1.0:
            logits = logits * self.scale
        bent = None
        if self.softcap is not None:
            bent = torch.tanh(logits / self.softcap)
            logits = self.softcap * bent
        return logits / self.temperature if self.temperature != 1.0 else logits, bent

    def to_product(self, gradient: Tensor, bent: Tensor | None) -> Tensor:
        """The gradient to products from that to logits, in place."""
        if bent is not None:
            gradient.mul_(1.0 - bent * bent)
        factor = self.scale / self.temperature
        return gradient if factor == 1.0 else gradient.mul_(factor)


def token_logprobs(
    hidden: Tensor,
    head: OutputHead,
    targets: Tensor,
    temperature: float = 1.0,
    weight_sum: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of its distribution.

    Args:
        hidden: ``[tokens, width]``: the state that predicts each target.
        head: The output head.
        targets: ``[tokens]`` int64.
        temperature: Divides the logits.
        weight_sum: What the gradient to the head's weight is added to, tile by tile; then the
            weight's own ``grad`` gets none. It spares two tensors as large as the weight.

    Returns:
        ``[tokens]`` float32 log-probabilities in nats with gradient to hidden, weight and bias, and
        ``[tokens]`` float32 entropies without.
    """
    shape = _Shape(head.scale, head.softcap, temperature)
    weight, bias = head.weight, head.bias
    if weight_sum is not None:
        weight = weight.detach()
    if not torch.is_grad_enabled():
        hidden, weight, bias = (
            hidden.detach(),
            weight.detach(),
            None if bias is None else bias.detach(),
        )
        weight_sum = None
    logprobs, entropy = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, shape, weight_sum
    )
    return logprobs, entropy


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        shape: _Shape,
        weight_sum: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        to_hidden, *to_head = ctx.needs_input_grad[:3]
        trained = weight_sum is not None or any(to_head)
        products = _Products(hidden, weight, bias, room=KEPT_BYTES if trained else 0)
        chunks = [
            (rows, _Scores(hidden[rows], targets[rows], shape, pulls=to_hidden and not trained))
            for rows in _slices(len(hidden), TOKEN_CHUNK)
        ]
        for columns in _slices(len(weight), VOCABULARY_TILE):
            for rows, scores in chunks:
                scores.add(products.take(rows, columns), weight[columns], columns.start)
        lse, entropy, picked = hidden.new_empty(3, len(hidden), dtype=_wide(hidden))
        for rows, scores in chunks:
            lse[rows], entropy[rows], picked[rows] = scores.results()
        if trained:
            ctx.save_for_backward(hidden, weight, targets, lse, weight_sum)
            ctx.products, ctx.shape = products, shape
        elif to_hidden:
            ctx.save_for_backward(*(scores.pull(lse[rows]) for rows, scores in chunks))
        ctx.trained, ctx.dtype = trained, hidden.dtype
        ctx.mark_non_differentiable(entropy)
        return picked - lse, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0].unsqueeze(1)
        if ctx.trained:
            return (*_backward(ctx, gradient), None, None, None)
        parts = zip(ctx.saved_tensors, torch.split(gradient, TOKEN_CHUNK), strict=False)
        return (torch.cat([pull * part for pull, part in parts]).to(ctx.dtype), *[None] * 5)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients to hidden states, weight and bias, where the head is trained."""
    hidden, weight, targets, lse, weight_sum = ctx.saved_tensors
    needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    wide = _wide(hidden)
    to_hidden = torch.zeros_like(hidden, dtype=wide) if needs_hidden else None
    to_weight = torch.zeros_like(weight, dtype=wide) if needs_weight else weight_sum
    to_bias = lse.new_zeros(len(weight)) if needs_bias else None
    for columns in _slices(len(weight), VOCABULARY_TILE):
        for rows in _slices(len(hidden), TOKEN_CHUNK):
            logits, bent = ctx.shape.logits(ctx.products.take(rows, columns))
            to_logits = _to_logits(logits, lse[rows], targets[rows] - columns.start, gradient[rows])
            to_product = ctx.shape.to_product(to_logits, bent).to(hidden.dtype)
            if to_hidden is not None:
                to_hidden[rows] += to_product @ weight[columns]
            if to_weight is not None:
                to_weight[columns] += to_product.t() @ hidden[rows]
            if to_bias is not None:
                to_bias[columns] += to_product.sum(0, dtype=wide)
    return (
        None if to_hidden is None else to_hidden.to(hidden.dtype),
        to_weight.to(weight.dtype) if needs_weight and to_weight is not None else None,
        None if to_bias is None else to_bias.to(weight.dtype),
    )


def _to_logits(logits: Tensor, lse: Tensor, targets: Tensor, gradient: Tensor) -> Tensor:
    """Gradient to a tile's logits: ``(target - probability) * gradient``."""
    result = torch.exp(logits - lse.unsqueeze(1)).mul_(-gradient)
    inside = ((targets >= 0) & (targets < logits.shape[1])).nonzero().squeeze(1)
    result[inside, targets[inside]] += gradient[inside, 0]
    return result


class _Products:
    """Products of hidden states with tiles of the weight, kept for a second time while they fit.

    They are in the working precision, as ``OutputHead.logits`` takes them, so that the trainer
    scores a token as the engine did.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, room: int) -> None:
        self._hidden, self._weight, self._bias = hidden, weight, bias
        self._room = room
        self._kept: dict[tuple[int, int], Tensor] = {}

    def take(self, rows: slice, columns: slice) -> Tensor:
        """The product of some rows and columns; given away if it was kept."""
        place = (rows.start, columns.start)
        if place in self._kept:
            return self._kept.pop(place)
        bias = None if self._bias is None else self._bias[columns]
        product = F.linear(self._hidden[rows], self._weight[columns], bias)
        if product.nbytes <= self._room:
            self._room -= product.nbytes
            self._kept[place] = product
        return product


class _Scores:
    """What is summed over the vocabulary for a chunk of tokens: an online softmax.

    Args:
        hidden: ``[tokens, width]``.
        targets: ``[tokens]``.
        shape: Of the head.
        pulls: Whether to sum ``pull``, too.
    """

    def __init__(self, hidden: Tensor, targets: Tensor, shape: _Shape, *, pulls: bool) -> None:
        wide = _wide(hidden)
        self._targets, self._shape = targets, shape
        self._highest = hidden.new_full((len(hidden),), -torch.inf, dtype=wide)
        self._total = torch.zeros_like(self._highest)
        self._weighted = torch.zeros_like(self._highest)
        self._picked = torch.empty_like(self._highest)
        self._towards = torch.zeros_like(hidden, dtype=wide) if pulls else None
        self._others = torch.zeros_like(hidden, dtype=wide) if pulls else None

    def add(self, product: Tensor, weight: Tensor, start: int) -> None:
        """Take in a tile of products with a tile of the weight, whose first entry is ``start``."""
        logits, bent = self._shape.logits(product)
        peak = torch.maximum(self._highest, logits.amax(dim=1))
        shrink = torch.exp(self._highest - peak)
        exponentials = torch.exp(logits - peak.unsqueeze(1))
        self._total.mul_(shrink).add_(exponentials.sum(dim=1))
        self._weighted.mul_(shrink).add_((exponentials * logits).sum(dim=1))
        self._highest = peak
        inside = ((self._targets >= start) & (self._targets < start + len(weight))).nonzero()[:, 0]
        columns = self._targets[inside] - start
        self._picked[inside] = logits[inside, columns]
        if self._others is not None:
            # Without the target: next to it, rounding would swallow what the others pull.
            exponentials[inside, columns] = 0.0
            away = self._shape.to_product(exponentials, bent).to(product.dtype)
            self._others.mul_(shrink.unsqueeze(1)).add_(away @ weight)
            self._aim(inside, columns, weight, bent)

    def _aim(self, rows: Tensor, columns: Tensor, weight: Tensor, bent: Tensor | None) -> None:
        """Note the weights of targets that are in this tile."""
        assert self._towards is not None
        towards = weight[columns].to(self._towards.dtype)
        slope = None if bent is None else bent[rows, columns].unsqueeze(1)
        self._towards[rows] = self._shape.to_product(towards, slope)

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """``[tokens]`` each: log-sum-exp, entropy, and the target's logit."""
        lse = self._highest + self._total.log()
        return lse, lse - self._weighted / self._total, self._picked

    def pull(self, lse: Tensor) -> Tensor:
        """``[tokens, width]``: ``d logprob / d hidden``, given the log-sum-exp.

        It is ``(1 - p) w_target - sum over the others of p w``, w being the weights with what the
        head adds to them.
        """
        assert self._towards is not None
        assert self._others is not None
        rest = -torch.expm1(self._picked - lse)
        others = self._others * torch.exp(self._highest - lse).unsqueeze(1)
        return self._towards * rest.unsqueeze(1) - others


def _wide(tensor: Tensor) -> torch.dtype:
    """Float32, or float64 for tests that ask for it."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
