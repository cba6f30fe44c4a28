"""Cache and steps of one call: prefill a group once, decode all rows, take out finished ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from roost.engines.base import completion_text
from roost.engines.embedded.attention import DecodeLayout, PrefillLayout, Row
from roost.engines.embedded.cache import LayerShape, SlotCache
from roost.engines.embedded.sampling import sample
from roost.engines.embedded.scheduler import Capacity, RunningGroup, RunningSample, Scheduler
from roost.engines.embedded.stopping import StopStrings
from roost.engines.protocol import SamplingParams
from roost.model.flash import padded
from roost.model.policy import Policy
from roost.samples import FinishReason, Sample, TokenSource

PREFILL_TOKENS = 2048
"""Prompt tokens a forward, at most; a longer prompt goes alone."""


class Batch:
    """The cache and the decode step of one ``generate`` call."""

    def __init__(
        self,
        policy: Policy,
        tokenizer: Any,
        layers: Sequence[LayerShape],
        scheduler: Scheduler,
        sampling: SamplingParams,
        longest_prompt: int,
        capacity: Capacity,
    ) -> None:
        self._policy = policy
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._sampling = sampling
        self._stop_strings = StopStrings(tokenizer, sampling.stop)
        own = own_tokens(sampling.max_completion_tokens)
        place = (policy.dtype, policy.device)
        self._prompts = SlotCache(layers, capacity.groups, padded(longest_prompt), *place)
        self._own = SlotCache(layers, capacity.rows, own, *place)
        self._last_hidden: dict[RunningGroup, Tensor] = {}
        self.drawn = 0
        """Tokens drawn so far."""

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return self._prompts.nbytes + self._own.nbytes

    @torch.inference_mode()
    def start_waiting(self) -> list[Sample]:
        """Admit what fits and draw the first token of each new sample.

        Returns:
            Those that are finished with that token.
        """
        while groups := self._scheduler.admit_groups(PREFILL_TOKENS):
            self._prefill(groups)
        started = self._scheduler.admit_samples()
        if not started:
            return []
        self._draw(started, self._first_logits(started))
        return self._collect()

    @torch.inference_mode()
    def decode(self) -> list[Sample]:
        """Draw one token for every running sample, and return the finished ones."""
        running = list(self._scheduler.rows)
        if not running:
            return []
        rows = [
            Row(sample.group.slot, len(sample.group.prompt.token_ids), sample.cached)
            for sample in running
        ]
        layout = DecodeLayout(self._prompts, self._own, rows)
        ids = self._tensor([sample.token_ids[-1] for sample in running])
        hidden = self._policy.hidden_states(ids, layout.positions, layout)
        self._draw(running, self._policy.head.logits(hidden))
        return self._collect()

    def _prefill(self, groups: list[RunningGroup]) -> None:
        """Compute the prompts' keys and values, and the hidden states that first tokens need."""
        lengths = [len(group.prompt.token_ids) for group in groups]
        ids = self._tensor([token for group in groups for token in group.prompt.token_ids])
        positions = torch.cat([torch.arange(length) for length in lengths]).to(ids.device)
        layout = PrefillLayout(self._prompts, [group.slot for group in groups], lengths)
        hidden = self._policy.hidden_states(ids, positions, layout)
        last = hidden[torch.tensor(lengths).cumsum(0).to(ids.device) - 1]
        self._last_hidden.update(zip(groups, last, strict=True))

    def _first_logits(self, started: list[RunningSample]) -> Tensor:
        """Logits ``[samples, vocabulary]``, the head computed once a prompt."""
        groups = list(dict.fromkeys(sample.group for sample in started))
        logits = self._policy.head.logits(torch.stack([self._last_hidden[g] for g in groups]))
        place = {group: index for index, group in enumerate(groups)}
        return logits[[place[sample.group] for sample in started]]

    def _draw(self, samples: list[RunningSample], logits: Tensor) -> None:
        """Append one drawn token to each sample, and note which have come to their end."""
        draw = sample(logits, [next(running.stream) for running in samples], self._sampling)
        self.drawn += len(samples)
        columns = (draw.tokens, draw.logprobs, draw.kept_mass_logs)
        for running, token, logprob, kept in zip(samples, *columns, strict=True):
            running.token_ids.append(token)
            running.logprobs.append(logprob)
            running.kept_mass_logs.append(kept)
            running.policy_versions.append(self._policy.version)
            running.finish_reason = self._finish_reason(running)

    def _finish_reason(self, running: RunningSample) -> FinishReason | None:
        ids = running.token_ids
        if ids[-1] in self._sampling.stop_token_ids or self._stop_strings.found(ids):
            return FinishReason.STOP
        if len(ids) >= self._sampling.max_completion_tokens:
            return FinishReason.LENGTH
        return None

    def _collect(self) -> list[Sample]:
        """Take finished samples out of their rows, and idle groups out of their slots."""
        scheduler = self._scheduler
        finished = []
        for row in range(len(scheduler.rows) - 1, -1, -1):
            running = scheduler.rows[row]
            if running.finish_reason is None:
                continue
            finished.append(self._finish(running, running.finish_reason))
            if move := scheduler.remove_row(row):
                self._own.move(move.source, move.target, move.length)
        if finished:
            for move in scheduler.remove_idle_groups():
                self._prompts.move(move.source, move.target, move.length)
            live = set(scheduler.groups)
            self._last_hidden = {g: h for g, h in self._last_hidden.items() if g in live}
        return finished[::-1]

    def _finish(self, running: RunningSample, reason: FinishReason) -> Sample:
        return Sample(
            prompt_id=running.group.prompt.id,
            index=running.index,
            token_ids=running.token_ids,
            logprobs=running.logprobs,
            kept_mass_logs=running.kept_mass_logs,
            finish_reason=reason,
            policy_versions=running.policy_versions,
            sources=[TokenSource.MODEL] * len(running.token_ids),
            text=completion_text(self._tokenizer, running.token_ids),
        )

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self._policy.device)


def own_tokens(completion_tokens: int) -> int:
    """Cache places of a completion: its last token is never fed back."""
    return padded(max(1, completion_tokens - 1))
