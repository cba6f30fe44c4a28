"""Log-probabilities and entropy from hidden states, without ever holding the logits.

Forward passes over tiles of the vocabulary and keeps a running maximum and sum (online
log-sum-exp); backward computes each tile again. The most that is held is one tile of one chunk of
tokens, whatever the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roost.model.head import OutputHead

TOKEN_CHUNK = 1024
"""Tokens of a tile."""
VOCABULARY_TILE = 8192
"""Vocabulary entries of a tile; with TOKEN_CHUNK, 32 MiB in float32."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What turns a product into a log-probability's logit, besides the weights."""

    scale: float
    softcap: float | None
    temperature: float


def token_logprobs(
    hidden: Tensor, head: OutputHead, targets: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of its distribution.

    Args:
        hidden: ``[tokens, width]``: the state that predicts each target.
        head: The output head.
        targets: ``[tokens]`` int64.
        temperature: Divides the logits.

    Returns:
        ``[tokens]`` float32 log-probabilities in nats with gradient to hidden, weight and bias, and
        ``[tokens]`` float32 entropies without.
    """
    shape = _Shape(head.scale, head.softcap, temperature)
    logprobs, entropy = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, targets, shape
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
    ) -> tuple[Tensor, Tensor]:
        count = len(hidden)
        lse = hidden.new_empty(count, dtype=_wide(hidden))
        entropy, picked = torch.empty_like(lse), torch.empty_like(lse)
        for rows in _slices(count, TOKEN_CHUNK):
            _score_chunk(
                hidden[rows],
                weight,
                bias,
                targets[rows],
                shape,
                lse[rows],
                entropy[rows],
                picked[rows],
            )
        ctx.save_for_backward(hidden, weight, bias, targets, lse)
        ctx.shape = shape
        ctx.mark_non_differentiable(entropy)
        return picked - lse, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, lse = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        gradient, wide = gradients[0], _wide(hidden)
        to_hidden = torch.zeros_like(hidden, dtype=wide) if needs_hidden else None
        to_weight = torch.zeros_like(weight) if needs_weight else None
        to_bias = torch.zeros_like(bias, dtype=wide) if needs_bias and bias is not None else None
        for columns in _slices(len(weight), VOCABULARY_TILE):
            tile_weight, tile_bias = weight[columns], None if bias is None else bias[columns]
            weight_sum = torch.zeros_like(tile_weight, dtype=wide)
            for rows in _slices(len(hidden), TOKEN_CHUNK):
                to_logits = _logit_gradient(
                    hidden[rows],
                    tile_weight,
                    tile_bias,
                    targets[rows] - columns.start,
                    lse[rows],
                    gradient[rows],
                    ctx.shape,
                )
                if to_hidden is not None:
                    to_hidden[rows] += to_logits @ tile_weight
                if to_weight is not None:
                    weight_sum += to_logits.t() @ hidden[rows]
                if to_bias is not None:
                    to_bias[columns] += to_logits.sum(0, dtype=wide)
            if to_weight is not None:
                to_weight[columns] = weight_sum.to(weight.dtype)
        if to_hidden is not None:
            to_hidden = to_hidden.to(hidden.dtype)
        if to_bias is not None:
            to_bias = to_bias.to(bias.dtype)
        return to_hidden, to_weight, to_bias, None, None


def _wide(tensor: Tensor) -> torch.dtype:
    """Float32, or float64 for tests that ask for it."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _score_chunk(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    shape: _Shape,
    lse: Tensor,
    entropy: Tensor,
    picked: Tensor,
) -> None:
    """Fill log-sum-exp, entropy and target logit of a chunk, tile by tile."""
    highest = torch.full_like(lse, -torch.inf)
    total, weighted = torch.zeros_like(lse), torch.zeros_like(lse)
    for columns in _slices(len(weight), VOCABULARY_TILE):
        logits, _ = _logits(hidden, weight[columns], None if bias is None else bias[columns], shape)
        peak = torch.maximum(highest, logits.amax(dim=1))
        shrink = torch.exp(highest - peak)
        exponentials = torch.exp(logits - peak.unsqueeze(1))
        total.mul_(shrink).add_(exponentials.sum(dim=1))
        weighted.mul_(shrink).add_((exponentials * logits).sum(dim=1))
        highest = peak
        inside = (targets >= columns.start) & (targets < columns.stop)
        column = (targets - columns.start).clamp(0, logits.shape[1] - 1).unsqueeze(1)
        picked.copy_(torch.where(inside, logits.gather(1, column).squeeze(1), picked))
    lse.copy_(highest + total.log())
    entropy.copy_(lse - weighted / total)


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, shape: _Shape
) -> tuple[Tensor, Tensor | None]:
    """Float32 logits of a tile at the temperature, and tanh of the soft cap where there is one.

    The product is in the working precision, as ``OutputHead.logits`` takes it, so that the trainer
    scores a token as the engine did.
    """
    product = torch.nn.functional.linear(hidden, weight, bias)
    logits = product.to(_wide(product))
    if shape.scale != 1.0:
        logits = logits * shape.scale
    bent = None
    if shape.softcap is not None:
        bent = torch.tanh(logits / shape.softcap)
        logits = shape.softcap * bent
    return logits / shape.temperature if shape.temperature != 1.0 else logits, bent


def _logit_gradient(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    lse: Tensor,
    gradient: Tensor,
    shape: _Shape,
) -> Tensor:
    """Gradient to a tile's products, in the working precision: ``(target - probability) * g``."""
    logits, bent = _logits(hidden, weight, bias, shape)
    result = torch.exp(logits - lse.unsqueeze(1)).mul_(-gradient.unsqueeze(1))
    inside = ((targets >= 0) & (targets < logits.shape[1])).nonzero().squeeze(1)
    result[inside, targets[inside]] += gradient[inside]
    if bent is not None:
        result = result * (1.0 - bent * bent)
    return (result * (shape.scale / shape.temperature)).to(hidden.dtype)
