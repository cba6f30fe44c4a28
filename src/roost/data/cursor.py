"""Which prompts come next: epochs of seeded permutations, resumable anywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypedDict

from roost.errors import DataError
from roost.samples import Prompt


class CursorState(TypedDict):
    """All that the order depends on besides the seed."""

    epoch: int
    position: int
    carried: list[int]
    """Indices that the batch across the epoch's beginning had taken from the epoch before."""


class PromptCursor:
    """Deals prompts in batches; every prompt once an epoch.

    A batch that crosses the end of an epoch takes the rest of it and then prompts of the next one
    that it does not hold already, so no batch holds a prompt twice.

    Args:
        prompts: All prompts to train on.
        prompts_per_step: Size of a batch.
        shuffle: A new random order each epoch, or the order given.
        seed: With the epoch, decides the order.

    Raises:
        DataError: there are fewer prompts than a batch needs.
    """

    def __init__(
        self, prompts: Sequence[Prompt], prompts_per_step: int, *, shuffle: bool, seed: int
    ) -> None:
        if len(prompts) < prompts_per_step:
            raise DataError(
                f"data.prompts_per_step = {prompts_per_step}: there are only {len(prompts)} "
                "prompts."
            )
        self._prompts = prompts
        self._size = prompts_per_step
        self._shuffle = shuffle
        self._seed = seed
        self._begin_epoch(0, carried=[])
        self._position = 0

    def next_batch(self) -> list[Prompt]:
        """The next ``prompts_per_step`` prompts, all distinct."""
        batch = self._order[self._position : self._position + self._size]
        self._position += len(batch)
        missing = self._size - len(batch)
        if missing:
            self._begin_epoch(self._epoch + 1, carried=batch)
            batch = batch + self._order[:missing]
            self._position = missing
        return [self._prompts[index] for index in batch]

    def state_dict(self) -> CursorState:
        """Where the cursor stands."""
        return {"epoch": self._epoch, "position": self._position, "carried": self._carried}

    def load_state_dict(self, state: CursorState) -> None:
        """Stand where ``state`` was taken."""
        self._begin_epoch(state["epoch"], carried=state["carried"])
        self._position = state["position"]

    def _begin_epoch(self, epoch: int, carried: list[int]) -> None:
        order = self._order_of(epoch)
        held = set(carried)
        # A stable sort: what the current batch holds already moves behind the rest.
        self._order = sorted(order, key=lambda index: index in held)
        self._epoch, self._carried = epoch, carried

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self._prompts)))
        if self._shuffle:
            random.Random(f"{self._seed} {epoch}").shuffle(order)
        return order
