"""The engine: what fits at once, and samples handed out as they finish."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from roost.engines.base import BaseEngine, Call
from roost.engines.embedded.batch import Batch
from roost.engines.embedded.cache import bytes_per_token
from roost.engines.embedded.decoders import Decoding
from roost.engines.embedded.packed_products import packed_products
from roost.engines.embedded.rooms import Extent, Rooms
from roost.engines.embedded.scheduler import Capacity, Scheduler
from roost.engines.embedded.support import check_supported, evaluating
from roost.model.flash import padded
from roost.model.policy import Policy
from roost.samples import Sample


@dataclass(slots=True)
class GenerationProgress:
    """Where a ``generate`` call stands; updated in place after each step."""

    tokens: int = 0
    """Completion tokens drawn so far."""
    active: int = 0
    """Samples that are being decoded."""
    queued: int = 0
    """Samples that have not started."""
    finished: int = 0
    """Samples that have been completed."""


class EmbeddedEngine(BaseEngine):
    """Continuous batching on the policy's own module, adapters active; no copy of the weights is
    kept between two calls.

    Implements ``roost.engines.protocol.Engine``. The cache lives as long as one ``generate``
    call, unless it is to be kept; closing the iterator early releases it.

    Args:
        policy: The model that is being trained. Only read.
        tokenizer: Decodes samples; may be None where neither text nor stop strings are needed.
        cache_bytes: Bound on the key-value cache.
        max_sequences: Bound on completions decoded at once.
        decoding: How steps are computed; by default what suits the policy's device.
        pack_weights: Decode with a copy of the weights that a CPU's kernels read faster, where
            there are such kernels.
        keep_cache: Keep it for the next call, with the steps that were recorded over it.

    Raises:
        ModelError: The engine cannot decode this architecture.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer: Any,
        *,
        cache_bytes: int,
        max_sequences: int | None = None,
        decoding: Decoding | None = None,
        keep_cache: bool = False,
        pack_weights: bool = True,
    ) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.cache_bytes = cache_bytes
        self.max_sequences = max_sequences
        self.pack_weights = pack_weights
        self.progress = GenerationProgress()
        self._layers = check_supported(policy)
        self.decoding = decoding or Decoding.of(policy, self._layers)
        self._rooms = Rooms(
            policy, self._layers, self.decoding, keep=keep_cache, cache_bytes=cache_bytes
        )
        self._peak_bytes = 0

    @property
    def peak_bytes(self) -> int:
        """See ``Engine``: what was allocated, of which a CPU provides only the pages in use."""
        return self._peak_bytes

    @property
    def outdated(self) -> bool:
        """See ``Engine``: never, its weights are the policy's own."""
        return False

    def sync(self) -> dict[str, float]:
        """See ``Engine``: there is nothing to sync."""
        return {}

    @property
    def sleeps(self) -> bool:
        """See ``Engine``: it holds nothing between two calls."""
        return False

    def sleep(self) -> None:
        """See ``Engine``: there is nothing to give back."""

    def close(self) -> None:
        """See ``Engine``."""
        self._rooms.clear()

    def capacity(
        self, prompt_tokens: int, completion_tokens: int, prompts: int, generations: int
    ) -> Capacity:
        """How many prompts and completions of these lengths would run at once.

        Raises:
            EngineError: Not even one.
        """
        token = bytes_per_token(self._layers, self.policy.dtype)
        return Capacity.fitting(
            self.cache_bytes,
            prompt_bytes=token * padded(prompt_tokens),
            completion_bytes=token * own_tokens(completion_tokens),
            prompts=prompts,
            generations=generations,
            max_sequences=self.max_sequences,
        )

    def _generate(self, call: Call) -> Iterator[Sample]:
        """See ``BaseEngine``.

        Raises:
            EngineError: Not even one sequence fits in the cache.
        """
        prompts, sampling = call.prompts, call.sampling
        longest = max(len(prompt.token_ids) for prompt in prompts)
        capacity = self.capacity(
            longest, sampling.max_completion_tokens, len(prompts), call.generations
        )
        scheduler = Scheduler(prompts, call.generations, capacity, call.seed, call.step)
        extent = Extent(
            capacity.groups,
            capacity.rows,
            padded(longest),
            own_tokens(sampling.max_completion_tokens),
        )
        module = self.policy.module
        packed = packed_products(module) if self.pack_weights else nullcontext()
        with self._rooms.lent(extent) as room, evaluating(module), packed:
            self._peak_bytes = room.nbytes
            batch = Batch(self.policy, self.tokenizer, scheduler, sampling, room)
            self.progress = GenerationProgress(queued=scheduler.waiting)
            while scheduler.rows or scheduler.waiting:
                for advance in (batch.start_waiting, batch.decode):
                    finished = advance()
                    self._note(scheduler, batch.drawn, len(finished))
                    yield from finished

    def _note(self, scheduler: Scheduler, drawn: int, finished: int) -> None:
        progress = self.progress
        progress.tokens = drawn
        progress.active = len(scheduler.rows)
        progress.queued = scheduler.waiting
        progress.finished += finished


def own_tokens(completion_tokens: int) -> int:
    """Cache places of a completion: its last token is never fed back."""
    return padded(max(1, completion_tokens - 1))
