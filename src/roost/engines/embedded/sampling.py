"""Drawing tokens: one uniform number a row, and the log-probability it was drawn with.

The order is that of transformers: temperature, then top-k, then top-p among what top-k kept, then
min-p. Each truncation works on the temperature-scaled distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from roost.engines.embedded.graphs import on_device
from roost.engines.protocol import SamplingParams

_SHORTLIST = 256
"""How many of the likeliest tokens top-p looks at before it sorts the whole vocabulary."""
_SUMMED = 256
"""Probabilities that are summed at once before the one of them that was drawn is looked for."""
_BLOCK = 1 << 22
"""Logits handled at once: 16 MiB in float32, several of which live side by side."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One token a row, on the CPU."""

    tokens: list[int]
    logprobs: list[float]
    """Under the distribution that was drawn from: scaled, truncated, renormalised."""
    kept_mass_logs: list[float]
    """Log of the share of the scaled distribution that truncation kept; 0 without truncation."""


def sample(logits: Tensor, uniforms: list[float], sampling: SamplingParams) -> Draw:
    """Draw one token a row.

    Args:
        logits: ``[rows, vocabulary]`` float32.
        uniforms: One number in [0, 1) a row. Greedy decoding ignores it.
        sampling: Temperature and truncation.
    """
    rows = max(1, _BLOCK // logits.shape[-1])
    levels = on_device(uniforms, torch.float64, logits.device).float()
    blocks = zip(torch.split(logits, rows), torch.split(levels, rows), strict=True)
    parts = [_sample(block, level, sampling) for block, level in blocks]
    # One tensor, so that one transfer is waited for: float64 holds every token id exactly.
    drawn = torch.stack([torch.cat(column).double() for column in zip(*parts, strict=True)])
    tokens, logprobs, kept = drawn.tolist()
    return Draw([int(token) for token in tokens], logprobs, kept)


def _sample(logits: Tensor, uniforms: Tensor, sampling: SamplingParams) -> tuple[Tensor, ...]:
    if sampling.temperature == 0:
        return _greedy(logits)
    probabilities = torch.softmax(logits / sampling.temperature, dim=-1)
    if sampling.top_k > 0 or sampling.top_p < 1:
        return _sample_ranked(probabilities, uniforms, sampling)
    if sampling.min_p > 0:
        best = probabilities.amax(-1, keepdim=True)
        kept = probabilities.where(probabilities >= sampling.min_p * best, 0.0)
        return _draw(kept, uniforms)
    tokens, logprobs, kept_logs = _draw(probabilities, uniforms)
    # Rounding aside, the whole vocabulary holds mass 1: say exactly 1.
    return tokens, logprobs + kept_logs, torch.zeros_like(kept_logs)


def _greedy(logits: Tensor) -> tuple[Tensor, ...]:
    tokens = logits.argmax(-1, keepdim=True)
    logprobs = torch.log_softmax(logits, dim=-1).gather(-1, tokens)[:, 0]
    return tokens[:, 0], logprobs, torch.zeros_like(logprobs)


def _draw(kept: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
    """Invert the cumulative distribution of ``kept`` (``[rows, n]``, its sum the kept mass).

    In two levels, since a running sum takes several times as long as a sum: first the block of
    ``_SUMMED`` entries that holds the level, then the entry in it.
    """
    missing = -kept.shape[-1] % _SUMMED
    blocks = (F.pad(kept, (0, missing)) if missing else kept).view(len(kept), -1, _SUMMED)
    before = blocks.sum(-1).cumsum(-1)
    mass = before[:, -1]
    block = _first_above(before, _below(uniforms * mass, mass))
    before = F.pad(before, (1, 0)).gather(-1, block)
    inside = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, _SUMMED))[:, 0]
    within = inside.cumsum(-1)
    # The running sum of a block and its sum may round differently.
    level = _below(uniforms * mass - before[:, 0], within[:, -1])
    index = block * _SUMMED + _first_above(within, level)
    chosen = kept.gather(-1, index)[:, 0]
    mass_log = mass.log()
    return index[:, 0], chosen.log() - mass_log, mass_log


def _below(level: Tensor, total: Tensor) -> Tensor:
    """The level, below the total even where rounding lifted it: then some sum exceeds it, and the
    first that does rises above its predecessor, so its entry is not zero."""
    return torch.minimum(level, torch.nextafter(total, torch.zeros_like(total)))


def _first_above(sums: Tensor, level: Tensor) -> Tensor:
    """``[rows, 1]``: index of the first of ``[rows, n]`` rising sums that exceeds ``[rows]``."""
    return torch.searchsorted(sums, level.unsqueeze(-1), right=True)


def _sample_ranked(
    probabilities: Tensor, uniforms: Tensor, sampling: SamplingParams
) -> tuple[Tensor, ...]:
    """Draw among the likeliest tokens, sorted; only rows that need it sort everything."""
    vocabulary = probabilities.shape[-1]
    width = min(sampling.top_k or _SHORTLIST, vocabulary)
    values, ids = probabilities.topk(width, dim=-1)
    kept = _truncate(values, sampling)
    tokens, logprobs, masses = _draw_among(kept, ids, uniforms)
    if sampling.top_k > 0 or width == vocabulary:
        return tokens, logprobs, masses
    # A row whose shortlist top-p kept to the end may go on behind it. Each row decides for
    # itself, so its draw does not depend on the other rows.
    unfinished = (values.sum(-1) < sampling.top_p).nonzero()[:, 0]
    if unfinished.numel():
        values, ids = probabilities[unfinished].sort(dim=-1, descending=True, stable=True)
        parts = _draw_among(_truncate(values, sampling), ids, uniforms[unfinished])
        for whole, part in zip((tokens, logprobs, masses), parts, strict=True):
            whole[unfinished] = part
    return tokens, logprobs, masses


def _truncate(values: Tensor, sampling: SamplingParams) -> Tensor:
    """Zero what top-p and min-p drop from probabilities sorted downwards ``[rows, n]``.

    Top-p keeps the shortest run of likeliest tokens that reaches its share; the likeliest token
    stays always.
    """
    kept = values
    if sampling.top_p < 1:
        total = values.sum(-1, keepdim=True) if sampling.top_k > 0 else 1.0
        before = values.cumsum(-1) - values
        kept = kept.where(before < sampling.top_p * total, 0.0)
        kept[:, 0] = values[:, 0]
    if sampling.min_p > 0:
        kept = kept.where(values >= sampling.min_p * values[:, :1], 0.0)
    return kept


def _draw_among(kept: Tensor, ids: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
    index, logprobs, mass_logs = _draw(kept, uniforms)
    return ids.gather(-1, index.unsqueeze(-1))[:, 0], logprobs, mass_logs
