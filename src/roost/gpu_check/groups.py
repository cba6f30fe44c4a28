"""Groups of random samples, trainers over them, and the gradient that they should give."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from roost.bench.batches import scored_sample
from roost.config.loading import build_config
from roost.gpu_check.models import VOCABULARY
from roost.model.policy import Policy
from roost.samples import Group, Prompt
from roost.training.batch import TrainBatch
from roost.training.trainer import Trainer

Gradient = dict[str, Tensor]


def random_groups(prompts: Sequence[int], completions: Sequence[Sequence[int]]) -> list[Group]:
    """Groups with prompts and completions of these lengths, the same tokens each time."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(count)]

    return [
        Group(
            Prompt(number, tuple(tokens(length)), "prompt"),
            [scored_sample(number, index, tokens(n), rng) for index, n in enumerate(lengths)],
        )
        for number, (length, lengths) in enumerate(zip(prompts, completions, strict=True))
    ]


def trainer_of(module: Any, budget: int = 10_000, **sections: Any) -> Trainer:
    """A trainer with Roost's defaults but for these sections, and packs of ``budget`` tokens."""
    sections.setdefault("rollout", {"max_completion_tokens": 256})
    sections.setdefault("train", {"learning_rate": 1e-3})
    return Trainer(Policy(module), build_config(sections), micro_batch_tokens=budget)


def packed_gradient(trainer: Trainer, groups: Sequence[Group]) -> Gradient:
    """The gradient that one update of these groups uses, by parameter name."""
    batch = TrainBatch.of(groups, trainer.config)
    trainer.optimizer.zero_grad()
    for part in batch.parts:
        trainer.accumulate(batch, part, defaultdict(float))
    return {name: g.clone() for name, g in trainer.optimizer.gradients().items()}


def plain_logprobs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """``[tokens]`` log-probabilities of a completion by transformers' own forward of it alone."""
    ids = torch.tensor([[*prompt, *completion]], device=model.device)
    output: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    logits = output[len(prompt) - 1 : -1].float()
    picked = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])
    return picked.squeeze(1)


def plain_gradient(model: Any, groups: Sequence[Group]) -> Gradient:
    """The gradient of the default loss, one sequence a forward, no packing."""
    model.zero_grad()
    tokens = sum(len(s.token_ids) for group in groups for s in group.samples)
    for group in groups:
        for sample in group.samples:
            logprobs = plain_logprobs(model, group.prompt.token_ids, sample.token_ids)
            ratio = torch.exp(logprobs - logprobs.detach())
            loss = -(ratio * sample.advantage).sum() / tokens
            torch.autograd.backward([loss])
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def distance(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> float:
    """The largest relative difference of a parameter's gradient.

    Relative to the parameter's own, or to a thousandth of the whole gradient where its own is
    smaller than that: a gradient of nearly 0 has only rounding in it.
    """
    if wanted.keys() != found.keys():
        return float("inf")
    whole = math.sqrt(sum(float(g.double().pow(2).sum()) for g in wanted.values()))
    return max(
        float((wanted[name].float() - found[name].float()).norm())
        / max(float(wanted[name].float().norm()), 1e-3 * whole)
        for name in wanted
    )


def whole_distance(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> float:
    """The relative difference of the whole gradients, as one vector."""
    gap = sum(float((wanted[n].float() - found[n].float()).pow(2).sum()) for n in wanted)
    size = sum(float(g.float().pow(2).sum()) for g in wanted.values())
    return math.sqrt(gap / size)
