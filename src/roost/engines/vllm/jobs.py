"""The samples of a ``generate`` call that servers still owe, shared out as each asks for more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from roost.engines.protocol import SampleKey
from roost.engines.vllm.port import Request

ATTEMPTS = 4
"""Times that a sample is asked for: one whose request ends each server must end at some time."""


@dataclass(slots=True)
class Job:
    """One sample to make."""

    key: SampleKey
    request: Request
    attempts: int = 0


class JobQueue:
    """Jobs in order; for any number of threads."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = deque(jobs)
        self._change = threading.Condition()
        self._over = False

    @property
    def over(self) -> bool:
        """Whether ``end`` was called."""
        return self._over

    def take(self, most: int, wait_s: float) -> list[Job]:
        """The next jobs, at most so many; waits a moment where there is none."""
        with self._change:
            if not self._jobs and wait_s and not self._over:
                self._change.wait(wait_s)
            taken = [self._jobs.popleft() for _ in range(min(most, len(self._jobs)))]
        for job in taken:
            job.attempts += 1
        return taken

    def give_back(self, jobs: Sequence[Job]) -> list[Job]:
        """Put jobs of a lost server in front again; returns those that were tried enough."""
        spent = [job for job in jobs if job.attempts >= ATTEMPTS]
        with self._change:
            self._jobs.extendleft(job for job in reversed(jobs) if job.attempts < ATTEMPTS)
            self._change.notify_all()
        return spent

    def pause(self, seconds: float) -> None:
        """Wait, unless the call is over."""
        with self._change:
            if not self._over:
                self._change.wait(seconds)

    def end(self) -> None:
        """Nothing more is wanted: all that wait go on."""
        with self._change:
            self._over = True
            self._change.notify_all()
