"""Scored groups without a rollout, to measure the training step alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

from roost.samples import FinishReason, Group, Prompt, Sample, TokenSource


def random_groups(
    prompts: int, prompt_tokens: int, lengths: Sequence[int], vocabulary: int
) -> list[Group]:
    """Groups of random tokens, the same ones each time.

    Args:
        prompts: How many groups.
        prompt_tokens: Of each prompt.
        lengths: Tokens of each completion of a group.
        vocabulary: Token ids are below this.
    """
    rng = random.Random(0)
    return [
        Group(
            Prompt(number, tuple(_tokens(rng, prompt_tokens, vocabulary)), "prompt"),
            [
                scored_sample(number, index, _tokens(rng, length, vocabulary), rng)
                for index, length in enumerate(lengths)
            ],
        )
        for number in range(prompts)
    ]


def spread_lengths(generations: int, budget: int) -> list[int]:
    """Lengths of a group's completions, spread evenly from an eighth of the budget to all of it.

    >>> spread_lengths(3, 128)
    [16, 72, 128]
    """
    least = max(1, budget // 8)
    steps = max(1, generations - 1)
    return [least + (budget - least) * index // steps for index in range(generations)]


def scored_sample(prompt: int, index: int, token_ids: list[int], rng: random.Random) -> Sample:
    """A sample as it comes to training; its advantage is not 0, so that it is computed."""
    count = len(token_ids)
    return Sample(
        prompt_id=prompt,
        index=index,
        token_ids=token_ids,
        logprobs=[-1.0] * count,
        kept_mass_logs=[0.0] * count,
        finish_reason=FinishReason.STOP,
        policy_versions=[0] * count,
        sources=[TokenSource.MODEL] * count,
        reward=0.0,
        advantage=rng.choice([-1.0, 1.0]) * rng.uniform(0.1, 2.0),
    )


def _tokens(rng: random.Random, count: int, vocabulary: int) -> list[int]:
    return [rng.randrange(vocabulary) for _ in range(count)]
