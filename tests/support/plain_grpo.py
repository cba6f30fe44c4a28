"""GRPO's gradient the plain way: one sequence a forward, transformers' own attention, no packing.

The reference that packs, splits and chunked log-probabilities are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from roost.samples import Group


def plain_logprobs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """``[tokens]`` log-probabilities of a completion, with gradient."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(input_ids=ids, use_cache=False).logits[0]
    logits = logits[len(prompt) - 1 : -1].to(torch.promote_types(logits.dtype, torch.float32))
    picked = logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])
    return picked.squeeze(1)


def plain_gradient(model: Any, groups: Sequence[Group]) -> dict[str, Tensor]:
    """The gradient of the default loss (DAPO, on-policy) over all samples, by parameter name."""
    model.zero_grad()
    tokens = sum(len(s.token_ids) for g in groups for s in g.samples)
    for group in groups:
        for sample in group.samples:
            if not sample.token_ids:
                continue
            logprobs = plain_logprobs(model, group.prompt.token_ids, sample.token_ids)
            ratio = torch.exp(logprobs - logprobs.detach())
            (-(ratio * sample.advantage).sum() / tokens).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
