"""What every rollout engine offers, whichever library decodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from roost.samples import Prompt, Sample


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How completions are drawn. One set for one ``generate`` call."""

    max_completion_tokens: int
    """Token budget of one completion, its stop token included."""
    temperature: float = 1.0
    """0 is greedy; then ``logprobs`` are those of temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    """Keeps tokens of at least this share of the likeliest token's probability."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion when its decoded text holds one."""
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    """Token ids that end a completion; they are kept as its last token."""


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names the random stream of a sample: the same key draws the same uniforms, whichever
    other samples share the batch."""

    seed: int
    step: int
    prompt_id: int
    index: int


class Engine(Protocol):
    """Makes samples.

    Implementations: ``roost.engines.embedded.EmbeddedEngine``, which has no weights of its own, and
    ``roost.engines.vllm.engine.VllmEngine``, which must be synced before it samples.
    """

    def generate(
        self,
        prompts: Sequence[Prompt],
        generations: int,
        sampling: SamplingParams,
        *,
        seed: int,
        step: int,
    ) -> Iterator[Sample]:
        """Yield ``generations`` samples of each prompt, each as soon as it has finished.

        Order is by completion, not by prompt. More samples than fit in memory are queued. The
        random stream of a sample is ``SampleKey(seed, step, prompt.id, index)``.
        """
        ...

    @property
    def peak_bytes(self) -> int:
        """Most bytes that the key-value cache has held in the last ``generate`` call."""
        ...

    @property
    def outdated(self) -> bool:
        """Whether ``sync`` must be called before the next ``generate``."""
        ...

    def sync(self) -> dict[str, float]:
        """Take the policy's weights and prove that they arrived; wakes an engine that sleeps.

        Returns:
            Metrics; none where there was nothing to do.
        """
        ...

    @property
    def sleeps(self) -> bool:
        """Whether it gives its memory back while the trainer trains."""
        ...

    def sleep(self) -> None:
        """Give it back, until the next ``sync``."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...
