"""Which samples run now: admission by memory, rows and slots that stay packed. No tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from roost.engines.embedded.streams import uniforms
from roost.engines.protocol import SampleKey
from roost.errors import EngineError
from roost.samples import FinishReason, Prompt


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many sequences the cache holds at once."""

    groups: int
    """Prompts."""
    rows: int
    """Completions."""

    @classmethod
    def fitting(
        cls,
        cache_bytes: int,
        *,
        prompt_bytes: int,
        completion_bytes: int,
        prompts: int,
        generations: int,
        max_sequences: int | None,
    ) -> Capacity:
        """The most rows that fit with room for their prompts.

        Rows free up one by one, so there is room for twice as many prompts as full groups would
        need, where memory allows: the next group starts while the last one's stragglers finish.

        Raises:
            EngineError: Not even one sequence fits.

        Example: of 10 MB, with 1 MB a prompt and 1 MB a completion, 4 prompts and 4 generations,
        two prompts and eight rows fit.
        """
        limit = min(prompts * generations, max_sequences or prompts * generations)
        for rows in range(limit, 0, -1):
            full_groups = -(-rows // generations)
            for groups in range(min(prompts, 2 * full_groups), full_groups - 1, -1):
                if groups * prompt_bytes + rows * completion_bytes <= cache_bytes:
                    return cls(groups, rows)
        raise EngineError(
            f"the key-value cache of {cache_bytes:,} bytes holds not even one sequence, which "
            f"needs {prompt_bytes + completion_bytes:,}; shorten prompts or completions, or give "
            "the engine more memory"
        )


@dataclass(slots=True, eq=False)
class RunningGroup:
    """A prompt whose keys and values are in the cache."""

    prompt: Prompt
    slot: int
    waiting: deque[int]
    """Indices of its samples that have not started."""
    running: int = 0
    """Samples that hold a row."""


@dataclass(slots=True, eq=False)
class RunningSample:
    """A completion that grows. Its row is its place in ``Scheduler.rows``."""

    group: RunningGroup
    index: int
    stream: Iterator[float]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept_mass_logs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def cached(self) -> int:
        """Its tokens in the cache: all but the newest, which the next step computes."""
        return max(0, len(self.token_ids) - 1)


@dataclass(frozen=True, slots=True)
class Move:
    """A slot's content that must be copied, because it took over a freed slot."""

    source: int
    target: int
    length: int


class Scheduler:
    """Owns who waits and who runs.

    Invariant: running samples are ``rows[0 .. n-1]`` and running groups ``groups[0 .. m-1]``, and
    a group's slot is its place in that list; whoever removes one gets the move that its cache
    needs. Samples start in the order of prompts, and of indices within a prompt.
    """

    def __init__(
        self, prompts: Sequence[Prompt], generations: int, capacity: Capacity, seed: int, step: int
    ) -> None:
        self._capacity = capacity
        self._generations = generations
        self._seed, self._step = seed, step
        self._prompts = deque(prompts)
        self.groups: list[RunningGroup] = []
        self.rows: list[RunningSample] = []

    @property
    def waiting(self) -> int:
        """Samples that have not started."""
        started = sum(len(group.waiting) for group in self.groups)
        return len(self._prompts) * self._generations + started

    def admit_groups(self, max_tokens: int) -> list[RunningGroup]:
        """Give slots to the next prompts, as far as rows are free for their samples.

        Args:
            max_tokens: Prompt tokens at most; one prompt always passes.
        """
        free = self._capacity.rows - len(self.rows) - sum(len(g.waiting) for g in self.groups)
        admitted: list[RunningGroup] = []
        tokens = 0
        while self._prompts and free > 0 and len(self.groups) < self._capacity.groups:
            tokens += len(self._prompts[0].token_ids)
            if admitted and tokens > max_tokens:
                break
            waiting = deque(range(self._generations))
            group = RunningGroup(self._prompts.popleft(), len(self.groups), waiting)
            self.groups.append(group)
            admitted.append(group)
            free -= self._generations
        return admitted

    def admit_samples(self) -> list[RunningSample]:
        """Start samples of running groups in the rows that are free."""
        admitted: list[RunningSample] = []
        for group in self.groups:
            while group.waiting and len(self.rows) < self._capacity.rows:
                sample = self._start(group, group.waiting.popleft())
                self.rows.append(sample)
                admitted.append(sample)
        return admitted

    def _start(self, group: RunningGroup, index: int) -> RunningSample:
        group.running += 1
        key = SampleKey(self._seed, self._step, group.prompt.id, index)
        return RunningSample(group, index, uniforms(key))

    def remove_row(self, row: int) -> Move | None:
        """Free a row; the last row takes its place."""
        sample, last = self.rows[row], self.rows.pop()
        sample.group.running -= 1
        if last is sample:
            return None
        self.rows[row] = last
        return Move(len(self.rows), row, last.cached)

    def remove_idle_groups(self) -> Iterator[Move]:
        """Free the slots of groups whose samples have all finished; carry out each move in turn."""
        for slot in range(len(self.groups) - 1, -1, -1):
            group = self.groups[slot]
            if group.running or group.waiting:
                continue
            last = self.groups.pop()
            if last is not group:
                self.groups[slot] = last
                last.slot = slot
                yield Move(len(self.groups), slot, len(last.prompt.token_ids))
