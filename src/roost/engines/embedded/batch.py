"""Steps of one call: prefill a group once, decode all rows, take out finished ones."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from roost.engines.base import completion_text
from roost.engines.embedded.attention import PrefillLayout
from roost.engines.embedded.graphs import on_device
from roost.engines.embedded.rooms import Room
from roost.engines.embedded.sampling import sample
from roost.engines.embedded.scheduler import RunningGroup, RunningSample, Scheduler
from roost.engines.embedded.stopping import StopStrings
from roost.engines.protocol import SamplingParams
from roost.model.policy import Policy
from roost.samples import FinishReason, Sample, TokenSource

PREFILL_TOKENS = 2048
"""Prompt tokens a forward, at most; a longer prompt goes alone."""


class Batch:
    """The steps of one ``generate`` call, in a room that it has to itself."""

    def __init__(
        self,
        policy: Policy,
        tokenizer: Any,
        scheduler: Scheduler,
        sampling: SamplingParams,
        room: Room,
    ) -> None:
        self._policy = policy
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._sampling = sampling
        self._stop_strings = StopStrings(tokenizer, sampling.stop)
        self._room = room
        self._last_hidden: dict[RunningGroup, Tensor] = {}
        self.drawn = 0
        """Tokens drawn so far."""

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
        self._draw(running, self._room.decoder.logits(running))
        return self._collect()

    def _prefill(self, groups: list[RunningGroup]) -> None:
        """Compute the prompts' keys and values, and the hidden states that first tokens need."""
        lengths = [len(group.prompt.token_ids) for group in groups]
        ids = self._tensor([token for group in groups for token in group.prompt.token_ids])
        positions = self._tensor([place for length in lengths for place in range(length)])
        layout = PrefillLayout(self._room.prompts, [group.slot for group in groups], lengths)
        hidden = self._policy.hidden_states(ids, positions, layout)
        last = hidden[self._tensor([end - 1 for end in accumulate(lengths)])]
        self._last_hidden.update(zip(groups, last, strict=True))

    def _first_logits(self, started: list[RunningSample]) -> Tensor:
        """Logits ``[samples, vocabulary]``, the head computed once a prompt."""
        groups = list(dict.fromkeys(sample.group for sample in started))
        logits = self._policy.head.logits(torch.stack([self._last_hidden[g] for g in groups]))
        place = {group: index for index, group in enumerate(groups)}
        return logits[self._tensor([place[sample.group] for sample in started])]

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
                self._room.own.move(move.source, move.target, move.length)
        if finished:
            for move in scheduler.remove_idle_groups():
                self._room.prompts.move(move.source, move.target, move.length)
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
        return on_device(values, torch.int64, self._policy.device)
