"""A whole rollout batch trained the plain way: float64, padded, one mask, losses from the papers.

Beside ``support.loss_cases``, which compares the objective on given log-probabilities, this goes
through a model: transformers' own attention over a padded batch, and autograd through all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from roost.config import RunConfig
from roost.samples import Sample
from support.loss_cases import Padded, plain_terms

Member = tuple[tuple[int, ...], Sample]
"""Prompt tokens and a sample that counts in the loss."""


def padded_logprobs(model: Any, members: Sequence[Member], temperature: float) -> Tensor:
    """``[samples, completion tokens]`` float64, padding on the right."""
    rows = [[*prompt, *sample.token_ids] for prompt, sample in members]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits / temperature
    every = logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
    longest = max(len(sample.token_ids) for _, sample in members)
    result = every.new_zeros(len(members), longest)
    for number, (prompt, sample) in enumerate(members):
        count = len(sample.token_ids)
        start = len(prompt) - 1
        result[number, :count] = every[number, start : start + count]
    return result


def padded_rows(rows: Sequence[Sequence[float]]) -> Tensor:
    """``[rows, longest]`` float64, padding on the right."""
    width = max(map(len, rows))
    padded = [[*row, *[0.0] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.float64)


def plain_gradient_of_update(
    model: Any,
    members: Sequence[Member],
    config: RunConfig,
    *,
    old: Tensor | None,
    reference: Tensor | None,
    batch_tokens: int,
) -> tuple[dict[str, Tensor], float]:
    """Gradient by parameter name, and the loss, of one update of some samples.

    Args:
        model: In float64, with transformers' attention.
        members: The update's samples.
        config: The run.
        old: ``[samples, tokens]`` before the first update; None where the policy is that.
        reference: Likewise under the reference; None without KL.
        batch_tokens: Completion tokens of the whole batch.
    """
    model.zero_grad()
    logprobs = padded_logprobs(model, members, config.rollout.temperature)
    counts = torch.tensor([len(sample.token_ids) for _, sample in members])
    mask = (torch.arange(logprobs.shape[1]) < counts[:, None]).double()
    rows = Padded(
        logprobs=logprobs,
        old=logprobs.detach() if old is None else old,
        reference=torch.zeros_like(logprobs) if reference is None else reference,
        mask=mask,
        advantages=torch.tensor([s.advantage for _, s in members], dtype=torch.float64),
        engine=padded_rows([sample.full_logprobs for _, sample in members]),
    )
    terms = plain_terms(rows, config.loss, config.decided_correction) * mask
    match config.loss.type:
        case "grpo":
            loss = (terms.sum(1) / mask.sum(1)).mean()
        case "dr_grpo":
            loss = terms.sum() / (len(terms) * config.rollout.max_completion_tokens)
        case "bnpo":
            loss = terms.sum() / mask.sum()
        case "dapo":
            loss = terms.sum() / (batch_tokens / config.train.updates_per_batch)
        case other:
            raise AssertionError(other)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return gradients, float(loss.detach())
