"""The nouns that travel between data, engine, rewards and training.

Token ids are the truth; text is derived from them and never turned back into tokens.
Nothing here imports torch, so rewards and planner processes stay light.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

Messages = list[dict[str, Any]]
"""A conversation: ``[{"role": "user", "content": "..."}, ...]``."""


class TokenSource(IntEnum):
    """Who produced a token of a completion; only ``MODEL`` tokens are trained on."""

    MODEL = 0
    TOOL = 1
    ENVIRONMENT = 2


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The model produced a stop token or a stop string."""
    LENGTH = "length"
    """The completion reached its token budget: it is truncated."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data, tokenised."""

    id: int
    """The row's index in its source: stable across runs, and part of every sample's random key."""
    token_ids: tuple[int, ...]
    """What the model sees, chat template applied; never empty."""
    content: str | Messages
    """The prompt as the data gave it, for rewards and for people."""
    columns: dict[str, Any] = field(default_factory=dict)
    """All other columns of the row; they go to the rewards by name."""


@dataclass(slots=True)
class Sample:
    """One completion of a prompt. The engine makes it; rewards and advantages fill it in."""

    prompt_id: int
    index: int
    """Which of the prompt's G completions this is, from 0."""
    token_ids: list[int]
    """The completion's tokens, the stop token included when the model produced one."""
    logprobs: list[float]
    """Per token, the natural log-probability under the distribution it was sampled from
    (temperature applied, truncation by top-p/top-k/min-p renormalised)."""
    kept_mass_logs: list[float]
    """Per token, the log of the probability mass that truncation kept (0 without truncation), so
    ``logprobs + kept_mass_logs`` is the log-probability under the full vocabulary at the same
    temperature: the quantity that the trainer computes."""
    finish_reason: FinishReason
    policy_versions: list[int]
    """Per token, the version of the policy that produced it."""
    sources: list[TokenSource]
    """Per token, who produced it."""
    text: str = ""
    """``token_ids`` decoded, special tokens left out."""
    rewards: dict[str, float | None] = field(default_factory=dict)
    """Per reward function, its value; None where it could not score this sample."""
    reward: float | None = None
    """The weighted sum of the rewards that scored; None when none did: the sample is unscored."""
    advantage: float = 0.0
    """Set once the whole group is scored; 0 for an unscored sample."""
    trainer_logprobs: list[float] | None = None
    """Per token, what the trainer finds in place of ``full_logprobs`` under the weights that
    sampled; None where it has not computed this sample."""

    @property
    def full_logprobs(self) -> list[float]:
        """Per token, the log-probability over the full vocabulary at the sampling temperature."""
        return [a + b for a, b in zip(self.logprobs, self.kept_mass_logs, strict=True)]

    @property
    def truncated(self) -> bool:
        """Whether the completion ran out of budget before the model stopped."""
        return self.finish_reason is FinishReason.LENGTH


@dataclass(slots=True)
class Group:
    """The completions of one prompt, in the order of their indices."""

    prompt: Prompt
    samples: list[Sample]
