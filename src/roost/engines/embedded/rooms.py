"""The cache of a ``generate`` call and the decoder over it; kept for the next call where it may be.

On a GPU decode steps are recorded over fixed addresses, so the recordings last as long as the cache
does. Where the plan finds memory for it while the trainer trains, both stay: a step is then
recorded once a run, and not once a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from roost.engines.embedded.cache import LayerShape, SlotCache
from roost.engines.embedded.decoders import Decoder, Decoding
from roost.model.policy import Policy


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a room is."""

    groups: int
    """Prompts at once."""
    rows: int
    """Completions at once."""
    prompt_tokens: int
    """Places of each prompt, as ``padded`` gives them."""
    own_tokens: int
    """Places of each completion, likewise."""

    def holds(self, other: Extent) -> bool:
        """Whether a call that needs the other one fits into this."""
        return self.union(other) == self

    def union(self, other: Extent) -> Extent:
        """The smallest that holds both."""
        return Extent(
            max(self.groups, other.groups),
            max(self.rows, other.rows),
            max(self.prompt_tokens, other.prompt_tokens),
            max(self.own_tokens, other.own_tokens),
        )


class Room:
    """Caches of prompts and completions, and what decodes over them."""

    def __init__(
        self, policy: Policy, layers: Sequence[LayerShape], decoding: Decoding, extent: Extent
    ) -> None:
        def cache(slots: int, tokens: int) -> SlotCache:
            place = policy.dtype, policy.device
            return SlotCache(layers, slots, tokens, *place, token_major=decoding.fixed)

        self.extent = extent
        self.prompts = cache(extent.groups, extent.prompt_tokens)
        self.own = cache(extent.rows, extent.own_tokens)
        self.decoder: Decoder = decoding.decoder(policy, self.prompts, self.own)

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""
        return self.prompts.nbytes + self.own.nbytes


class Rooms:
    """Gives each call a room. Owns the one that is kept.

    Args:
        policy: What decodes.
        layers: What each layer caches.
        decoding: How steps are computed.
        keep: Whether a room outlives its call.
        cache_bytes: A room that is kept grows to no more than that.
    """

    def __init__(
        self,
        policy: Policy,
        layers: Sequence[LayerShape],
        decoding: Decoding,
        *,
        keep: bool,
        cache_bytes: int,
    ) -> None:
        self._policy = policy
        self._layers = layers
        self._decoding = decoding
        self._keep = keep
        self._cache_bytes = cache_bytes
        self._kept: Room | None = None

    @contextmanager
    def lent(self, needed: Extent) -> Iterator[Room]:
        """A room for a call, to itself: the one that was kept, where it is large enough."""
        room = self._take(needed)
        try:
            yield room
        finally:
            if self._keep:
                self._kept = room

    def _take(self, needed: Extent) -> Room:
        kept, self._kept = self._kept, None
        extent = needed
        if kept is not None:
            if kept.extent.holds(needed):
                return kept
            # Longer prompts come and go: what is made for both fits the next call too.
            both = kept.extent.union(needed)
            extent = both if self._bytes(both) <= self._cache_bytes else needed
            del kept  # before its successor is there
        return Room(self._policy, self._layers, self._decoding, extent)

    def clear(self) -> None:
        """Give back what is kept."""
        self._kept = None

    def _bytes(self, extent: Extent) -> int:
        token = sum(layer.elements for layer in self._layers) * self._policy.dtype.itemsize
        prompts, own = extent.groups * extent.prompt_tokens, extent.rows * extent.own_tokens
        return token * (prompts + own)
