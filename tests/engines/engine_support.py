"""What the engine tests share: prompts, an engine with a generous cache, a reference scorer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import SamplingParams
from roost.model.policy import Policy
from roost.samples import Prompt, Sample
from support.small_models import VOCABULARY, reference_logits


def make_prompts(lengths: Sequence[int], seed: int = 0, first_id: int = 0) -> list[Prompt]:
    """Random prompts of these lengths."""
    rng = random.Random(seed)
    return [
        Prompt(first_id + i, tuple(rng.randrange(3, VOCABULARY) for _ in range(n)), "")
        for i, n in enumerate(lengths)
    ]


def make_engine(module: Any, tokenizer: Any = None, **options: Any) -> EmbeddedEngine:
    """An engine whose cache holds everything unless the test says otherwise."""
    options.setdefault("cache_bytes", 1 << 26)
    return EmbeddedEngine(Policy(module), tokenizer, **options)


def run(
    engine: EmbeddedEngine,
    prompts: Sequence[Prompt],
    generations: int,
    sampling: SamplingParams,
    seed: int = 0,
    step: int = 0,
) -> dict[tuple[int, int], Sample]:
    """All samples by (prompt id, index); checks that each came exactly once."""
    samples = list(engine.generate(prompts, generations, sampling, seed=seed, step=step))
    by_key = {(sample.prompt_id, sample.index): sample for sample in samples}
    expected = {(prompt.id, i) for prompt in prompts for i in range(generations)}
    assert len(samples) == len(by_key) == len(expected)
    assert set(by_key) == expected
    return by_key


def completion_logits(eager: PreTrainedModel, prompt: Prompt, sample: Sample) -> Tensor:
    """Float32 logits ``[completion tokens, vocabulary]`` that predicted each token of a sample."""
    start = len(prompt.token_ids) - 1
    logits = reference_logits(eager, [*prompt.token_ids, *sample.token_ids])
    return logits[start : start + len(sample.token_ids)]


def close(a: Sequence[float], b: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether all values agree within an absolute tolerance."""
    return bool((torch.tensor(a) - b).abs().max() <= tolerance)
