"""What a run on one device leaves open, chosen: bytes of cache, tokens of a micro-batch, whether to
recompute activations, and whether a second engine sleeps. And what would save memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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

    @property
    def phases(self) -> tuple[Phase, Phase]:
        """Generate and train."""
        return self.sizes.generate_phase(self.cache), self.sizes.train_phase(self.micro)

    def savings(self) -> list[tuple[str, int]]:
        """The three changes that save most in the largest phase, and what each saves there."""
        generate, train = self.phases
        peak = max(generate, train, key=lambda phase: phase.bytes)
        options = []
        for what, changed in self._changes(decoding=peak is generate):
            after = changed.phases[0 if peak is generate else 1]
            options.append((what, peak.bytes - after.bytes))
        ranked = sorted(options, key=lambda option: -option[1])
        return [option for option in ranked if option[1] > 0][:3]

    def _changes(self, *, decoding: bool) -> Iterator[tuple[str, Choice]]:
        """The run with one thing changed each time; the last is for one of the phases alone."""
        sizes = self.sizes
        train = sizes.config.train.model_copy(update={"method": "lora"})
        adapted = replace(sizes, config=sizes.config.model_copy(update={"train": train}))
        yield "train.method = 'lora'", replace(self, sizes=adapted)
        if not sizes.recompute:
            recomputing = replace(self, sizes=sizes.recomputing(True))
            yield "train.gradient_checkpointing = true", recomputing
        if sizes.dtype_bytes == 4:
            yield "model.dtype = 'bfloat16'", replace(self, sizes=replace(sizes, dtype_bytes=2))
        if decoding:
            least = sizes.least_cache()
            yield f"rollout.cache_bytes = {least}", replace(self, cache=least)
        else:
            yield (
                f"train.micro_batch_tokens = {sizes.sequence}",
                replace(self, micro=sizes.sequence),
            )


def choose(sizes: RunSizes, usable: int, device: str) -> Choice:
    """What is asked for, and for the rest what is fastest in so many bytes of a kind of device."""
    sizes = replace(sizes, sleep_level=sizes.config.rollout.sleep or 0)
    wanted = MICRO_BATCH_TOKENS[device]
    awake = _choose_as(sizes, usable, wanted)
    if device != "cuda" or sizes.config.rollout.sleep is not None or not sizes.colocated:
        return awake
    _, train = awake.phases
    if awake.cache >= sizes.wanted_cache() and train.bytes <= usable:
        return awake
    # Sleeping costs seconds a step, so it is for runs that do not fit awake.
    return _choose_as(replace(sizes, sleep_level=1), usable, wanted)


def _choose_as(sizes: RunSizes, usable: int, wanted: int) -> Choice:
    """The choice at a sleep level, with micro-batches of ``wanted`` tokens where they fit."""
    cache = sizes.config.rollout.cache_bytes or _cache(sizes, usable)
    sizes = replace(sizes, awake_cache=cache if sizes.colocated else 0)
    recompute, micro = _training_shape(sizes, usable, wanted)
    return Choice(sizes.recomputing(recompute), cache, micro)


def _cache(sizes: RunSizes, usable: int) -> int:
    """All that a step's samples can use, or what is left; room for one sample at the least."""
    least, wanted = sizes.least_cache(), sizes.wanted_cache()
    return _most(least, wanted, usable, lambda cache: _needed_with(sizes, cache))


def _needed_with(sizes: RunSizes, cache: int) -> int:
    """Bytes of the phases that hold the cache."""
    needed = sizes.generate_phase(cache).bytes
    if sizes.colocated and sizes.sleep_level == 0:
        recompute = sizes.config.train.gradient_checkpointing is not False
        frugal = replace(sizes, awake_cache=cache, recompute=recompute)
        needed = max(needed, frugal.train_phase(sizes.sequence).bytes)
    return needed


def _training_shape(sizes: RunSizes, usable: int, wanted: int) -> tuple[bool, int]:
    """Whether to recompute activations, and tokens of a micro-batch.

    What is asked for, or else the fastest that fits: ``wanted`` tokens with activations kept,
    as many recomputed, and at the last fewer, with room for one sample at the least.
    """
    train = sizes.config.train
    wanted = train.micro_batch_tokens or max(wanted, sizes.sequence)
    recompute = train.gradient_checkpointing
    if recompute is None:
        recompute = sizes.recomputing(False).train_phase(wanted).bytes > usable
    if train.micro_batch_tokens:
        return recompute, wanted
    as_chosen = sizes.recomputing(recompute)
    micro = _most(sizes.sequence, wanted, usable, lambda micro: as_chosen.train_phase(micro).bytes)
    return recompute, micro


def _most(least: int, wanted: int, usable: int, needed: Callable[[int], int]) -> int:
    """The largest number up to ``wanted`` that needs no more than is usable; at least ``least``."""
    choices = range(least, max(least, wanted) + 1)
    return choices[max(0, bisect_right(choices, usable, key=needed) - 1)]
