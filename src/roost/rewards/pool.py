"""The pool of reward workers: a sample is scored while others decode, and none can stop the run.

Invariant. Each worker process has one thread here, which alone starts it, writes to it, reads from
it and kills it. Threads take tasks from one queue and put results into another; every submitted
task yields exactly one result, whatever its worker does, within the deadline (and the time to
start a worker). ``submit``, ``drain``, ``cancel`` and ``close`` belong to one thread, the run's.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from roost.errors import RewardError
from roost.rewards.loading import Reward
from roost.rewards.process import WorkerLost, WorkerProcess
from roost.samples import Prompt, Sample

START_TRIES = 3
"""A worker that dies while starting so many times ends the run."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A reward that could not score a sample."""

    reward: str
    """The reward's name, or ``all`` where the worker was lost."""
    kind: str
    """``raised``, ``count``, ``type``, ``nan``, ``none``, ``memory``, ``deadline`` or ``died``."""
    message: str
    prompt_id: int
    prompt: str


@dataclass(frozen=True, slots=True)
class Scored:
    """What the rewards said of a sample."""

    prompt_id: int
    index: int
    rewards: dict[str, float | None]
    reward: float | None
    """The weighted sum of the rewards that scored; None when none did."""
    failures: list[Failure]


@dataclass(frozen=True, slots=True)
class _Task:
    round: int
    prompt_id: int
    index: int
    prompt: str
    arguments: dict[str, Any]


class RewardPool:
    """Scores samples in worker processes, started once and reused.

    Args:
        rewards: The functions; at least one.
        deadline_s: Seconds that one sample may take in all rewards together.
        memory_bytes: Address space of a worker beyond what it starts with; None is no bound.
        workers: Processes; by default one a core, at most 4.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        deadline_s: float,
        memory_bytes: int | None = None,
        workers: int | None = None,
    ) -> None:
        self.rewards = list(rewards)
        self._tasks: queue.Queue[_Task | None] = queue.Queue()
        self._results: queue.Queue[tuple[_Task, Scored] | RewardError] = queue.Queue()
        self._round = 0
        self._pending = 0
        count = workers or max(1, min(4, os.cpu_count() or 1))
        setup = {
            "path": list(sys.path),
            "rewards": [reward.for_worker() for reward in self.rewards],
            "memory_bytes": memory_bytes,
        }
        self._threads = [
            _WorkerThread(self, pickle.dumps(setup), deadline_s, number) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, prompt: Prompt, sample: Sample) -> None:
        """Queue a sample for scoring."""
        self._pending += 1
        arguments = {
            **{name: [value] for name, value in prompt.columns.items()},
            "completions": [sample.text],
            "prompts": [prompt.content],
            "completion_ids": [list(sample.token_ids)],
            "finish_reasons": [str(sample.finish_reason)],
        }
        self._tasks.put(_Task(self._round, prompt.id, sample.index, str(prompt.content), arguments))

    def drain(self) -> list[Scored]:
        """Wait for all that was submitted since the last call.

        Raises:
            RewardError: workers cannot be started.
        """
        scores = []
        while self._pending:
            result = self._results.get()
            if isinstance(result, RewardError):
                raise result
            task, scored = result
            if task.round == self._round:
                scores.append(scored)
                self._pending -= 1
        return scores

    def cancel(self) -> None:
        """Forget what was submitted and not drained."""
        self._round += 1
        self._pending = 0
        try:
            while True:
                self._tasks.get_nowait()
        except queue.Empty:
            return

    def close(self) -> None:
        """End the workers, at once."""
        self.cancel()
        for thread in self._threads:
            thread.stop()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _done(self, task: _Task, scored: Scored) -> None:
        self._results.put((task, scored))

    def _broken(self, error: RewardError) -> None:
        self._results.put(error)


class _WorkerThread(threading.Thread):
    """Owns one worker process."""

    def __init__(self, pool: RewardPool, setup: bytes, deadline_s: float, number: int) -> None:
        super().__init__(name=f"roost-reward-{number}", daemon=True)
        self._pool = pool
        self._setup = setup
        self._deadline_s = deadline_s
        self._worker: WorkerProcess | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            self._ensure_worker()
            while (task := self._pool._tasks.get()) is not None:
                self._pool._done(task, self._score(task))
        except RewardError as error:
            if not self._stopping.is_set():
                self._pool._broken(error)
        except Exception as error:  # noqa: BLE001 - raised again in the run's thread, which waits
            self._pool._broken(RewardError(f"{self.name} failed: {type(error).__name__}: {error}"))
        finally:
            self._discard()

    def stop(self) -> None:
        """From the run's thread: make the worker end, even in the middle of a task."""
        self._stopping.set()
        worker = self._worker
        if worker is not None:
            worker.kill()

    def _score(self, task: _Task) -> Scored:
        try:
            message = pickle.dumps(task.arguments)
        except Exception as error:  # noqa: BLE001 - columns may hold objects that raise anything
            return self._lost(task, "type", f"its columns cannot be sent to a worker: {error}")
        try:
            outcomes = self._ensure_worker().ask(message, self._deadline_s)
        except WorkerLost as lost:
            self._discard()
            return self._lost(task, lost.kind, lost.message)
        return self._scored(task, outcomes)

    def _scored(self, task: _Task, outcomes: list[tuple[float | None, str | None, str]]) -> Scored:
        values: dict[str, float | None] = {}
        failures = []
        for reward, (value, kind, message) in zip(self._pool.rewards, outcomes, strict=True):
            values[reward.name] = value
            if kind is not None:
                failures.append(Failure(reward.name, kind, message, task.prompt_id, task.prompt))
        return Scored(
            task.prompt_id, task.index, values, weighted_sum(self._pool.rewards, values), failures
        )

    def _lost(self, task: _Task, kind: str, message: str) -> Scored:
        values: dict[str, float | None] = {reward.name: None for reward in self._pool.rewards}
        failure = Failure("all", kind, message, task.prompt_id, task.prompt)
        return Scored(task.prompt_id, task.index, values, None, [failure])

    def _ensure_worker(self) -> WorkerProcess:
        """The worker, started anew where the last one was lost."""
        problem = ""
        for _ in range(START_TRIES):
            if self._worker is not None:
                return self._worker
            if self._stopping.is_set():
                raise RewardError("the reward pool is closed")
            worker = WorkerProcess()
            self._worker = worker
            try:
                worker.start(self._setup)
            except WorkerLost as lost:
                problem = f"{lost.message}: {worker.log_tail()}"
                self._discard()
        if self._worker is not None:
            return self._worker
        raise RewardError(f"{self.name} cannot be started: {problem}")

    def _discard(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def weighted_sum(rewards: Sequence[Reward], values: dict[str, float | None]) -> float | None:
    """The weighted sum of the rewards that scored; None when none did."""
    terms = [
        reward.weight * value for reward in rewards if (value := values[reward.name]) is not None
    ]
    return sum(terms) if terms else None
