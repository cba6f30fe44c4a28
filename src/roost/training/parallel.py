"""Several processes that train one policy: who they are, and how they agree.

Every rank holds the whole policy, makes and scores samples of its share of a step's prompts, and
computes its share of the gradient. Nothing here is needed by a world of one, and then no process
group is opened.

Invariant: before each exchange all ranks meet at the store (``_meet``), where a wait has a deadline
and sees at once when another rank has failed. So an exchange itself never waits for a rank that is
late or gone, and the error names who did not come.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from roost.errors import RoostError
from roost.sync.digest import combined_digest, tensor_digest

T = TypeVar("T")

WAIT_S = 900.0
"""Longest wait of a rank for another: ranks sample and train for different times in a step."""
BUCKET_VALUES = 16 * 2**20
"""Gradient values summed at a time: 64 MiB in float32."""
_POLL_S = 0.01
_BLAME_S = 2.0
"""How long a rank may take to say that it failed, after its connections have closed."""
_FAILED = "failed"


class Ranks:
    """The processes of a run, as one of them sees them. The default is a run of one process.

    Args:
        rank: This process, from 0.
        world: How many there are.
        store: Where they meet; None in a world of one.
        wait_s: Deadline of every wait.
        tensor_parallel: Neighbouring ranks that hold one rollout engine together.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        store: Any = None,
        wait_s: float = WAIT_S,
        *,
        tensor_parallel: int = 1,
    ) -> None:
        self.rank = rank
        self.world = world
        self.tensor_parallel = tensor_parallel
        self._store = store
        self._wait_s = wait_s
        self._meetings = 0

    @property
    def leads(self) -> bool:
        """Whether this rank writes the run folder and speaks."""
        return self.rank == 0

    @property
    def shard(self) -> int:
        """This rank's place among those that hold an engine together."""
        return self.rank % self.tensor_parallel

    @property
    def engine(self) -> int:
        """Which of the run's engines this rank has, or has a shard of."""
        return self.rank // self.tensor_parallel

    def divide(self, items: Sequence[T], costs: Sequence[float]) -> list[T]:
        """This rank's share of some items, in their order; all ranks' shares are balanced by cost.

        The dearest goes first, to the rank that has least. Every rank computes the same division.
        """
        return balanced(items, costs, self.world)[self.rank]

    def divide_among_engines(self, items: Sequence[T], costs: Sequence[float]) -> list[T]:
        """The share of this rank's engine, as ``divide``."""
        return balanced(items, costs, self.world // self.tensor_parallel)[self.engine]

    def stretch(self, items: Sequence[T], costs: Sequence[float]) -> list[T]:
        """This rank's share of some items where neighbours belong together: one stretch of them.

        Stretches are of nearly equal cost; an item belongs to the rank in whose part of the whole
        its middle lies.
        """
        if self.world == 1:
            return list(items)
        whole, before, mine = sum(costs), 0.0, []
        for item, cost in zip(items, costs, strict=True):
            middle = (before + cost / 2) / whole if whole else 0.0
            if min(self.world - 1, int(middle * self.world)) == self.rank:
                mine.append(item)
            before += cost
        return mine

    def gather(self, value: T, what: str) -> list[T]:
        """Every rank's value, in the order of ranks.

        Args:
            value: Small, and of a kind that pickle takes.
            what: What is waited for, for the error.

        Raises:
            RoostError: a rank failed, or did not come in time; it is named.
        """
        if self.world == 1:
            return [value]
        self._meet(what)
        values: list[Any] = [None] * self.world
        with self.blamed(what):
            dist.all_gather_object(values, value)
        return values

    def sum(self, sums: Mapping[str, float], largest: Iterable[str], what: str) -> dict[str, float]:
        """Sums over ranks by name, of names in ``largest`` the largest. Raises as ``gather``."""
        if self.world == 1:
            return dict(sums)
        total: dict[str, float] = {}
        highest = set(largest)
        for part in self.gather(dict(sums), what):
            for name, value in part.items():
                if name in highest:
                    total[name] = max(total.get(name, value), value)
                else:
                    total[name] = total.get(name, 0.0) + value
        return total

    def sum_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Sum float32 gradients over ranks in place, a bounded bucket at a time.

        Raises:
            RoostError: as ``gather``.
        """
        if self.world == 1:
            return
        self._meet("the gradient")
        with self.blamed("the gradient"):
            for bucket in _buckets(gradients.values()):
                flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
                dist.all_reduce(flat)
                parts = torch.split(flat, [tensor.numel() for tensor in bucket])
                for tensor, part in zip(bucket, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))

    def check_equal(self, tensors: Mapping[str, Tensor], when: str) -> None:
        """Say when ranks do not hold the same bits.

        Args:
            tensors: By name.
            when: For the error, as in ``after step 3``.

        Raises:
            RoostError: naming a rank and a tensor that differ from rank 0's; or as ``gather``.
        """
        if self.world == 1:
            return
        mine = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
        found = self.gather(combined_digest(mine), "the digest of the weights")
        if len(set(found)) == 1:
            return
        every = self.gather(mine, "the digests of each weight")
        rank = next(r for r, digest in enumerate(found) if digest != found[0])
        names = sorted(n for n in every[0] if every[rank].get(n) != every[0][n])
        raise RoostError(
            f"{when}, rank {rank} holds other weights than rank 0: {names[0] if names else '?'} "
            f"and {max(0, len(names) - 1)} more differ. Ranks that differ train nothing that "
            "could be trusted. Resume from the last checkpoint, on machines of one kind."
        )

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank ends, so that none of them waits for it."""
        if self._store is not None and not isinstance(error, RankFailed):
            text = str(error) if isinstance(error, RoostError) else repr(error)
            self._store.set(_FAILED, f"{self.rank}\n{text}")

    def _meet(self, what: str) -> None:
        """Wait until every rank is here.

        Raises:
            RankFailed: one has failed or did not come before the deadline.
        """
        self._meetings += 1
        place = f"meeting/{self._meetings}"
        self._store.set(f"{place}/{self.rank}", b"")
        awaited = {r for r in range(self.world) if r != self.rank}
        deadline = time.monotonic() + self._wait_s
        while True:
            awaited = {r for r in awaited if not self._store.check([f"{place}/{r}"])}
            if not awaited:
                break
            self._raise_failure()
            if time.monotonic() > deadline:
                late = ", ".join(map(str, sorted(awaited)))
                raise RankFailed(
                    f"rank {self.rank} waited {self._wait_s:.0f} s for {what}: rank {late} of "
                    f"{self.world} did not answer. Look at what it is doing, and go on with "
                    "--resume."
                )
            time.sleep(_POLL_S)
        # All have left the meeting before this one.
        if self._meetings > 2:
            self._store.delete_key(f"meeting/{self._meetings - 2}/{self.rank}")

    def _raise_failure(self) -> None:
        if self._store.check([_FAILED]):
            rank, _, text = self._store.get(_FAILED).decode().partition("\n")
            raise RankFailed(f"rank {rank} of {self.world} failed: {text}")

    @contextmanager
    def blamed(self, what: str) -> Iterator[None]:
        """Name the rank that broke an exchange; torch says only that a connection closed.

        Args:
            what: What is exchanged.

        Raises:
            RankFailed: another rank failed; or torch did, and says why.
        """
        try:
            yield
        except RuntimeError as error:
            end = time.monotonic() + _BLAME_S
            while time.monotonic() < end:
                self._raise_failure()
                time.sleep(_POLL_S)
            raise RankFailed(f"rank {self.rank}: {what} could not be exchanged: {error}") from error


def balanced(items: Sequence[T], costs: Sequence[float], parts: int) -> list[list[T]]:
    """Items in so many parts of nearly equal cost, each in their order.

    >>> balanced("abcd", [9, 3, 3, 3], 2)
    [['a'], ['b', 'c', 'd']]
    """
    loads = [0.0] * parts
    shares: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(items)), key=lambda i: (-costs[i], i)):
        part = loads.index(min(loads))
        loads[part] += costs[index]
        shares[part].append(index)
    return [[items[index] for index in sorted(share)] for share in shares]


class RankFailed(RoostError):
    """Another rank failed or did not answer."""


ALONE = Ranks()
"""A run of one process."""


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    held = 0
    for tensor in tensors:
        if bucket and held + tensor.numel() > BUCKET_VALUES:
            yield bucket
            bucket, held = [], 0
        bucket.append(tensor)
        held += tensor.numel()
    if bucket:
        yield bucket
