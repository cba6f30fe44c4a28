"""Random groups of scored samples, for tests of training."""

from __future__ import annotations

import random
from collections.abc import Sequence

from roost.samples import FinishReason, Group, Prompt, Sample, TokenSource
from support.small_models import VOCABULARY


def sample(prompt_id: int, index: int, token_ids: Sequence[int], advantage: float) -> Sample:
    """A scored sample of the model's own tokens."""
    count = len(token_ids)
    return Sample(
        prompt_id=prompt_id,
        index=index,
        token_ids=list(token_ids),
        logprobs=[-1.0] * count,
        kept_mass_logs=[0.0] * count,
        finish_reason=FinishReason.STOP,
        policy_versions=[0] * count,
        sources=[TokenSource.MODEL] * count,
        reward=advantage,
        advantage=advantage,
    )


def random_groups(
    prompt_lengths: Sequence[int], completion_lengths: Sequence[Sequence[int]], seed: int = 0
) -> list[Group]:
    """Groups with these lengths, random tokens and random advantages."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(count)]

    return [
        Group(
            Prompt(number, tuple(tokens(length)), "prompt"),
            [sample(number, i, tokens(n), rng.uniform(-2, 2)) for i, n in enumerate(lengths)],
        )
        for number, (length, lengths) in enumerate(
            zip(prompt_lengths, completion_lengths, strict=True)
        )
    ]
