"""What is the same in every engine: how a call to ``generate`` begins, and a sample's text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roost.engines.protocol import SampleKey, SamplingParams
from roost.samples import Prompt, Sample


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one ``generate``, which asks for at least one sample."""

    prompts: Sequence[Prompt]
    generations: int
    sampling: SamplingParams
    seed: int
    step: int

    def samples(self) -> Iterator[tuple[Prompt, SampleKey]]:
        """Prompt and random stream of each sample, prompt by prompt."""
        for prompt in self.prompts:
            for index in range(self.generations):
                yield prompt, SampleKey(self.seed, self.step, prompt.id, index)


class BaseEngine(ABC):
    """An engine's ``generate``, over the part that differs."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        generations: int,
        sampling: SamplingParams,
        *,
        seed: int,
        step: int,
    ) -> Iterator[Sample]:
        """See ``Engine``. Where nothing is asked for, the engine is not touched.

        Whether it may sample is decided by the call, not by the first sample: who collects them may
        do so while the policy is trained.

        Raises:
            EngineError: see the engine's ``_check_ready`` and ``_generate``.
        """
        if not prompts or generations <= 0:
            return iter(())
        self._check_ready()
        return self._generate(Call(prompts, generations, sampling, seed, step))

    def _check_ready(self) -> None:  # noqa: B027 - an engine without weights of its own always is
        """Raise where it may not sample."""

    @abstractmethod
    def _generate(self, call: Call) -> Iterator[Sample]:
        """Sample what was asked for."""


def completion_text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """What a completion's tokens say; nothing where there is no tokenizer."""
    if tokenizer is None:
        return ""
    text: str = tokenizer.decode(
        token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text
