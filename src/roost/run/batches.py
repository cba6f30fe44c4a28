"""Where a step's batch comes from: sampled now, or while the step before was trained.

With ``rollout.staleness = 1`` the batch of step n + 1 is asked for when the engine has the weights
that step n starts with, and is collected by a thread of its own while step n trains. Everything
else, the engine and the reward pool included, belongs to the run's thread again once it has waited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from roost.errors import CheckpointError
from roost.rewards import RewardPool, Scored
from roost.rewards.pool import Failure
from roost.run.interrupts import StopSwitch
from roost.run.rollout import Rollout, finish_scoring
from roost.samples import FinishReason, Group, Prompt, Sample, TokenSource

CANCEL_S = 10.0
"""Seconds to wait for the end of samples that nobody wants; then the engine is closed over them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Scored samples of a step's prompts."""

    step: int
    """Steps completed when it is trained: part of its samples' random keys."""
    groups: list[Group]
    scores: list[Scored]
    """In the order of the samples."""
    ahead_s: float | None = None
    """Seconds that sampling took, where it went on while the step before was trained."""

    def metrics(self) -> dict[str, float]:
        """``time/ahead_s``, where it was sampled ahead."""
        return {} if self.ahead_s is None else {"time/ahead_s": self.ahead_s}

    def state_dict(self) -> dict[str, Any]:
        """For JSON, which keeps every number as it is."""
        groups = [
            {"prompt_id": group.prompt.id, "samples": [asdict(s) for s in group.samples]}
            for group in self.groups
        ]
        return {
            "step": self.step,
            "groups": groups,
            "scores": [asdict(score) for score in self.scores],
            "ahead_s": self.ahead_s,
        }

    @classmethod
    def of(cls, state: dict[str, Any], prompts: Sequence[Prompt]) -> Batch:
        """From ``state_dict``.

        Args:
            state: What it gave.
            prompts: All that the run trains on.

        Raises:
            CheckpointError: a prompt is not there any more.
        """
        by_id = {prompt.id: prompt for prompt in prompts}
        missing = [g["prompt_id"] for g in state["groups"] if g["prompt_id"] not in by_id]
        if missing:
            raise CheckpointError(
                f"the checkpoint holds samples of prompt {missing[0]}, which the data has no more."
            )
        groups = [
            Group(by_id[group["prompt_id"]], [_sample(values) for values in group["samples"]])
            for group in state["groups"]
        ]
        scores = [_scored(values) for values in state["scores"]]
        return cls(state["step"], groups, scores, state["ahead_s"])


class Ahead:
    """The next step's batch, on its way while this one trains.

    Args:
        rollout: Asked for; a thread collects it.
        pool: Where it is scored; the run's thread leaves it alone until ``batch`` has returned.
    """

    def __init__(self, rollout: Rollout, pool: RewardPool) -> None:
        self._rollout = rollout
        self._pool = pool
        self._stop = StopSwitch()
        self._groups: list[Group] = []
        self._error: BaseException | None = None
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._collect, name="roost-ahead", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all is sampled.

        Raises:
            Exception: whatever ended its sampling.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def batch(self) -> Batch:
        """All of it, scored; once.

        Raises:
            RewardError: workers cannot be started.
        """
        self.wait()
        scores = finish_scoring(self._pool, self._groups)
        return Batch(self._rollout.step, self._groups, scores, self._seconds)

    def cancel(self) -> None:
        """It is not wanted any more: end its thread after the sample that comes next."""
        self._stop.ask()
        self._thread.join(CANCEL_S)

    def _collect(self) -> None:
        start = time.perf_counter()
        try:
            self._groups = self._rollout.collect(self._stop, lambda sample: None)
        except BaseException as error:  # noqa: BLE001 - raised again in the run's thread
            self._error = error
        self._seconds = time.perf_counter() - start


def _sample(values: dict[str, Any]) -> Sample:
    return Sample(
        **{
            **values,
            "finish_reason": FinishReason(values["finish_reason"]),
            "sources": [TokenSource(source) for source in values["sources"]],
        }
    )


def _scored(values: dict[str, Any]) -> Scored:
    return Scored(**{**values, "failures": [Failure(**f) for f in values["failures"]]})
