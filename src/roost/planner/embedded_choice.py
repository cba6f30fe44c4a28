"""What a run on one device leaves open, chosen: bytes of cache, tokens of a micro-batch, whether to
recompute activations, and whether a second engine sleeps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from roost.planner.embedded_phases import (
    decoding_phases,
    generate_phase,
    phases,
    server_phase,
    train_phase,
)
from roost.planner.embedded_sizes import RunSizes
from roost.planner.terms import Phase

MICRO_BATCH_TOKENS = {"cpu": 1024, "cuda": 8192}
"""Tokens from which a larger micro-batch is no faster, by kind of device. Where memory is short,
activations are recomputed at first, and then a smaller micro-batch is chosen."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A run with nothing left open."""

    sizes: RunSizes
    cache: int
    """Bytes of the engine's cache."""
    micro: int
    """Tokens of a micro-batch."""
    available: int
    """Bytes that the trainer's process may use: what servers on the same machine leave of it."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Of this process, and of a server; with micro-batches as large as the pilot saw them."""
        seen = self.sizes.largest_micro_batch or self.micro
        return phases(self.sizes, self.cache, min(self.micro, seen))

    @property
    def peak(self) -> Phase:
        """The largest phase of a device, with micro-batches as large as they may become. Servers
        beside the trainer are in ``available``."""
        bound = phases(self.sizes, self.cache, self.micro)
        here = [p for p in bound if p.cards != "rollout" or not self.sizes.servers_here]
        return max(here, key=lambda phase: phase.bytes)

    @property
    def headroom(self) -> int:
        """Bytes to spare; below 0 where it does not fit."""
        return self.available - self.peak.bytes


def choose(sizes: RunSizes, usable: int) -> Choice:
    """What is asked for, and for the rest what is fastest in so many bytes of the device."""
    sizes = replace(sizes, sleep_level=sizes.config.rollout.sleep or 0)
    if sizes.served:
        return _choose_served(sizes, usable)
    if sizes.device == "cuda" and not sizes.colocated:
        return _keeping(_choose_as(replace(sizes, recorded=True), usable), usable)
    awake = _choose_as(sizes, usable)
    if sizes.device == "cpu" and sizes.dtype_bytes == 2 and not sizes.colocated:
        return _packing(awake, usable)
    if sizes.device != "cuda" or sizes.config.rollout.sleep is not None or not sizes.colocated:
        return awake
    if awake.cache >= sizes.wanted_cache() and awake.headroom >= 0:
        return awake
    # Sleeping costs seconds a step, so it is for runs that do not fit awake.
    return _choose_as(replace(sizes, sleep_level=1), usable)


def _choose_as(sizes: RunSizes, usable: int) -> Choice:
    """The choice at a sleep level."""
    cache = sizes.config.rollout.cache_bytes or _cache(sizes, usable)
    sizes = replace(sizes, awake_cache=cache if sizes.colocated else 0)
    recompute, micro = _training_shape(sizes, usable)
    return Choice(sizes.recomputing(recompute), cache, micro, usable)


def _choose_served(sizes: RunSizes, usable: int) -> Choice:
    """The choice where servers generate: beside the trainer they take of its memory."""
    servers, cache = sizes.servers_here, sizes.config.rollout.cache_bytes
    least = max(generate_phase(sizes, 0).bytes, _frugal_train(sizes))
    room = (usable - least) // servers if servers else usable
    if cache is None:
        bounds = sizes.least_cache(), sizes.wanted_cache()
        cache = _most(*bounds, room, lambda some: server_phase(sizes, some).bytes)
    left = usable - servers * server_phase(sizes, cache).bytes
    recompute, micro = _training_shape(sizes, left)
    return Choice(sizes.recomputing(recompute), cache, micro, left)


def _keeping(choice: Choice, usable: int) -> Choice:
    """The same with the cache kept while training, where it fits: it saves recording each step's
    decoding anew, and nothing else is given up for it."""
    cache = min(choice.cache, choice.sizes.wanted_cache())
    keeping = replace(choice, sizes=replace(choice.sizes, kept_cache=cache))
    return keeping if train_phase(keeping.sizes, choice.micro).bytes <= usable else choice


def _packing(choice: Choice, usable: int) -> Choice:
    """The same with weights packed for decoding, where that fits; nothing is given up for it."""
    packing = replace(choice, sizes=replace(choice.sizes, packed=True))
    needed = max(phase.bytes for phase in decoding_phases(packing.sizes, choice.cache))
    return packing if needed <= usable else choice


def _cache(sizes: RunSizes, usable: int) -> int:
    """All that a step's samples can use, or what is left; room for one sample at the least."""
    least, wanted = sizes.least_cache(), sizes.wanted_cache()
    return _most(least, wanted, usable, lambda cache: _needed_with(sizes, cache))


def _needed_with(sizes: RunSizes, cache: int) -> int:
    """Bytes of the phases that hold the cache."""
    needed = max(phase.bytes for phase in decoding_phases(sizes, cache))
    if sizes.colocated and sizes.sleep_level == 0:
        needed = max(needed, _frugal_train(replace(sizes, awake_cache=cache)))
    return needed


def _frugal_train(sizes: RunSizes) -> int:
    """Bytes of training one sample at a time."""
    recompute = sizes.config.train.gradient_checkpointing is not False
    return train_phase(sizes.recomputing(recompute), sizes.sequence).bytes


def _training_shape(sizes: RunSizes, usable: int) -> tuple[bool, int]:
    """Whether to recompute activations, and tokens of a micro-batch.

    What is asked for, or else the fastest that fits: ``MICRO_BATCH_TOKENS`` with activations
    kept, as many recomputed, and at the last fewer, with room for one sample at the least.
    """
    train = sizes.config.train
    wanted = train.micro_batch_tokens or max(MICRO_BATCH_TOKENS[sizes.device], sizes.sequence)
    recompute = train.gradient_checkpointing
    if recompute is None:
        recompute = train_phase(sizes.recomputing(False), wanted).bytes > usable
    if train.micro_batch_tokens:
        return recompute, wanted
    as_chosen = sizes.recomputing(recompute)
    micro = _most(sizes.sequence, wanted, usable, lambda micro: train_phase(as_chosen, micro).bytes)
    return recompute, micro


def _most(least: int, wanted: int, usable: int, needed: Callable[[int], int]) -> int:
    """The largest number up to ``wanted`` that needs no more than is usable; at least ``least``."""
    choices = range(least, max(least, wanted) + 1)
    return choices[max(0, bisect_right(choices, usable, key=needed) - 1)]
