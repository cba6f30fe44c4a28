"""vLLM in processes of its own: one engine made of one or several servers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roost.engines.base import BaseEngine, Call
from roost.engines.protocol import SamplingParams
from roost.engines.vllm.client import ServerGone
from roost.engines.vllm.engine import as_sample, stream_seed
from roost.engines.vllm.jobs import Job, JobQueue
from roost.engines.vllm.member import Member
from roost.engines.vllm.port import Finished, Request
from roost.errors import EngineError
from roost.model.policy import Policy
from roost.samples import Sample
from roost.sync.proof import check_version

RETRY_S = 0.5
PATIENCE_S = 300.0
"""Seconds without a server, or without a sample, after which a run gives up."""


@dataclass(frozen=True, slots=True)
class _Event:
    """What a worker tells: a job is done, or refused (``finished`` is None), or all is wrong."""

    job: Job | None = None
    finished: Finished | None = None
    version: int = 0
    """Of the weights that the server held for the job."""
    error: Exception | None = None


class ServerEngine(BaseEngine):
    """Implements ``roost.engines.protocol.Engine`` over servers.

    Invariant: a server is given a job only after it has been synced to the policy's version and
    proven, by the same proof as a colocated engine, since it was connected to; and it refuses a
    request that names another version. A server that does not answer loses its jobs to the queue,
    and takes part again once it is back, synced and proven.

    The policy may be trained while samples are collected: they come from the version that was
    synced before the call, but for those of a server that came back, which takes the policy as it
    is between two updates.

    Each server has a worker thread, for the time of one ``generate``; it takes jobs as its own are
    finished, so the fastest does the most.

    Args:
        policy: The model that is being trained. Only read.
        tokenizer: Decodes samples; None leaves their text empty.
        members: The servers.
        patience_s: How long to do without any.

    Raises:
        EngineError: one of them is not there, or does not fit the run.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer: Any,
        members: Sequence[Member],
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.policy = policy
        self._tokenizer = tokenizer
        self._members = list(members)
        self._patience_s = patience_s
        self._version: int | None = None
        self._lost = self._refused = self._again = 0
        self._cache_bytes = 0
        try:
            for member in self._members:
                member.connect(0.0)  # all at once: each loads a model
            for member in self._members:
                member.connect(None)
                self._cache_bytes += member.port.cache_bytes
        except BaseException:
            self.close()
            raise

    @property
    def peak_bytes(self) -> int:
        """See ``Engine``: the caches of all servers, taken whole at their start."""
        return self._cache_bytes

    @property
    def outdated(self) -> bool:
        """See ``Engine``."""
        return self._version != self.policy.version

    @property
    def sleeps(self) -> bool:
        """See ``Engine``: servers have memory of their own."""
        return False

    def sleep(self) -> None:
        """See ``Engine``."""
        raise EngineError("vLLM servers do not sleep; leave rollout.sleep out")

    def sync(self) -> dict[str, float]:
        """See ``Engine``. A server that is gone is synced when it is back.

        Raises:
            EngineError: a proof does not hold, or no server came back in time.
        """
        found: list[dict[str, float]] = []
        end = time.monotonic() + self._patience_s
        while not found:
            for member in self._members:
                try:
                    if member.connect(0.0):
                        found.append(member.sync())
                except ServerGone as error:
                    self._lose(member)
                    if time.monotonic() > end:
                        raise EngineError(f"no server since {self._patience_s:g} s: {error}") from (
                            error
                        )
            if not found:
                time.sleep(RETRY_S)
        self._version = self.policy.version
        return self._metrics([one for one in found if one])

    def _check_ready(self) -> None:
        """See ``BaseEngine``.

        Raises:
            EngineError: its weights are not the policy's.
        """
        check_version(self.policy.version, "none" if self._version is None else str(self._version))

    def doubt(self) -> None:
        """Have the next sync compare everything on each server, as the first does."""
        for member in self._members:
            if member.engine is not None:
                member.engine.doubt()

    def _generate(self, call: Call) -> Iterator[Sample]:
        """See ``BaseEngine``. A request that servers refuse costs its own sample.

        Raises:
            EngineError: no server answers; all was refused.
        """
        jobs = [
            Job(key, Request(prompt.token_ids, stream_seed(key))) for prompt, key in call.samples()
        ]
        pending, events = JobQueue(jobs), queue.Queue[_Event]()
        workers = [
            threading.Thread(target=self._work, args=(member, pending, call.sampling, events))
            for member in self._members
        ]
        for worker in workers:
            worker.start()
        try:
            yield from self._collect(len(jobs), events)
        finally:
            pending.end()
            for worker in workers:
                worker.join()

    def close(self) -> None:
        """See ``Engine``. Ends the servers that the run started, leaves the others."""
        for member in self._members:
            member.close()

    # -- the caller's thread

    def _collect(self, count: int, events: queue.Queue[_Event]) -> Iterator[Sample]:
        refused = 0
        for _ in range(count):
            try:
                event = events.get(timeout=self._patience_s)
            except queue.Empty as error:
                raise EngineError(
                    f"no server has finished a sample for {self._patience_s:g} s: "
                    f"{', '.join(self._standing())}"
                ) from error
            if event.error is not None:
                raise event.error
            if event.finished is None or event.job is None:
                refused += 1
                continue
            key, tokenizer = event.job.key, self._tokenizer
            yield as_sample(event.finished, key, version=event.version, tokenizer=tokenizer)
        self._refused += refused
        if refused == count:
            raise EngineError("the servers refused every request of this step")

    def _standing(self) -> Iterator[str]:
        for number, member in enumerate(self._members):
            there = member.engine is not None
            yield f"server {number} {'answers' if there else 'does not answer'}"

    # -- the workers' threads

    def _work(
        self,
        member: Member,
        jobs: JobQueue,
        sampling: SamplingParams,
        events: queue.Queue[_Event],
    ) -> None:
        """Keep one server busy until the call is over, whatever becomes of it."""
        running: dict[str, Job] = {}
        while not jobs.over:
            try:
                if not member.connect(RETRY_S):
                    continue
                self._bring_back(member)
                self._feed(member, jobs, running, sampling, events)
                self._reap(member, running, events)
            except ServerGone:
                self._lose(member)
                self._again += len(running)
                for job in jobs.give_back(list(running.values())):
                    events.put(_Event(job))
                running.clear()
                jobs.pause(RETRY_S)
            except Exception as error:  # noqa: BLE001 - raised in the caller's thread
                events.put(_Event(error=error))
                return
        self._abort(member, running)

    def _bring_back(self, member: Member) -> None:
        """Sync a server that was gone. The others keep the version that they sample with."""
        assert self._version is not None, "_check_ready has seen it"
        if member.version is None or member.version < self._version:
            with self.policy.lock:
                member.sync()

    def _feed(
        self,
        member: Member,
        jobs: JobQueue,
        running: dict[str, Job],
        sampling: SamplingParams,
        events: queue.Queue[_Event],
    ) -> None:
        # A few more than decode at once wait at the server, so that none of its places is idle.
        most = member.port.max_sequences * 5 // 4 + 1 - len(running)
        taken = jobs.take(most, 0.0 if running else RETRY_S)
        if not taken:
            return
        # Named before they are sent: they are owed again if the server dies at this.
        names = member.port.next_ids(len(taken))
        running.update(zip(names, taken, strict=True))
        member.port.submit([job.request for job in taken], sampling)
        for name in member.port.refused:
            events.put(_Event(running.pop(name)))

    def _reap(self, member: Member, running: dict[str, Job], events: queue.Queue[_Event]) -> None:
        if not running:
            return
        version = member.version
        assert version is not None, "it was given jobs"
        for finished in member.port.step():
            member.proved_useful()
            events.put(_Event(running.pop(finished.request_id), finished, version))

    def _abort(self, member: Member, running: dict[str, Job]) -> None:
        if not running:
            return
        try:
            member.port.abort(list(running))
        except ServerGone:
            self._lose(member)

    def _lose(self, member: Member) -> None:
        self._lost += 1
        member.lose()

    def _metrics(self, found: Sequence[dict[str, float]]) -> dict[str, float]:
        """Of the servers together: sums, and the worst of the probes."""
        merged: dict[str, float] = {}
        for one in found:
            for name, value in one.items():
                worst = name == "sync/probe_difference"
                before = merged.get(name, 0.0)
                merged[name] = max(before, value) if worst else before + value
        counts = {"lost": self._lost, "asked_again": self._again, "refused": self._refused}
        self._lost = self._again = self._refused = 0
        merged |= {f"servers/{name}": float(count) for name, count in counts.items()}
        return merged | {"servers/synced": float(len(found))}
