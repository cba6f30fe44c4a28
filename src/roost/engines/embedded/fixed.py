"""Decode steps of a fixed shape, whatever runs: what a GPU can record once and replay.

Rows are padded to a width, the next power of two, so that a call has few shapes. All that differs
from step to step is numbers in one tensor (``StepInputs``), filled by one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from roost.engines.embedded.cache import SlotCache
from roost.engines.embedded.fixed_attention import FixedLayout
from roost.engines.embedded.graphs import NotRecordable, Recorder, Work, on_device
from roost.engines.embedded.kernels import SlotKernel
from roost.engines.embedded.scheduler import RunningSample
from roost.model.policy import Policy

LEAST_KEYS = 64
"""Own keys of the narrowest step by definition; wider ones double it."""


def width_of(rows: int, most: int) -> int:
    """The width of a step with so many rows.

    >>> [width_of(n, 24) for n in (1, 2, 3, 9, 16, 17, 24)]
    [1, 2, 4, 16, 16, 24, 24]
    """
    return min(most, 1 << (rows - 1).bit_length())


class StepInputs:
    """The numbers that a step of one width reads, in one tensor that stays where it is.

    Padding rows stand at the start of their own slots, which nobody else has, and look at the first
    group's prompt: they compute something, and nobody reads it.

    Args:
        width: Rows.
        groups: Slots of prompts.
        device: Where they are read.
    """

    def __init__(self, width: int, groups: int, device: torch.device) -> None:
        self._width, self._groups = width, groups
        sizes = [*[width] * 5, groups + 1, groups]
        self._table = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        views = torch.split(self._table, sizes)
        self.ids, self.own_lengths, self.slots, self.order, self.places = views[:5]
        """``[width]`` each: the new token, its completion's length in the cache, its group's slot;
        the row at each place where rows are sorted by slot, and the place of each row."""
        self.group_ends, self.prompt_lengths = views[5:]
        """``[groups + 1]``: rows of slot i are at places from ``[i]`` to ``[i + 1]``; ``[groups]``:
        tokens of each slot's prompt."""

    def load(self, running: Sequence[RunningSample]) -> None:
        """Take the rows that run now; the copy is not waited for."""
        numbers = step_numbers(running, self._width, self._groups)
        self._table.copy_(on_device(numbers, torch.int64, self._table.device))


def step_numbers(running: Sequence[RunningSample], width: int, groups: int) -> list[int]:
    """What ``StepInputs`` holds, in its order."""
    padding = width - len(running)
    slots = [sample.group.slot for sample in running] + [0] * padding
    order = sorted(range(width), key=slots.__getitem__)
    places = [0] * width
    counts, prompts = [0] * groups, [1] * groups
    for place, row in enumerate(order):
        places[row] = place
        counts[slots[row]] += 1
    for sample in running:
        prompts[sample.group.slot] = len(sample.group.prompt.token_ids)
    return [
        *(sample.token_ids[-1] for sample in running),
        *[0] * padding,
        *(sample.cached for sample in running),
        *[0] * padding,
        *slots,
        *order,
        *places,
        *accumulate(counts, initial=0),
        *prompts,
    ]


@dataclass(slots=True)
class _Step:
    """One shape."""

    inputs: StepInputs
    work: Work
    uses: int = 0
    replay: Work | None = None


class FixedDecoder:
    """Computes the logits of the next tokens in steps of few shapes; records those that recur.

    Owns the steps, and their recordings where there is a recorder. A shape is rehearsed at its
    first use and recorded at its second: many are used once, as a batch runs out.

    Args:
        policy: The model.
        prompts: Keys and values of prompts, a slot each.
        own: Those of completions, a slot each: row i has slot i.
        kernel: Computes attention; None for the definition.
        recorder: Records steps; None to run them as they are.
    """

    def __init__(
        self,
        policy: Policy,
        prompts: SlotCache,
        own: SlotCache,
        kernel: SlotKernel | None,
        recorder: Recorder | None,
    ) -> None:
        self._policy = policy
        self._prompts, self._own = prompts, own
        self._kernel = kernel
        self._recorder = recorder
        self._steps: dict[tuple[int, int], _Step] = {}
        self.not_recorded = "" if recorder is not None else "no recorder"
        """Why steps are run as they are; empty where they are recorded."""

    @property
    def recordings(self) -> int:
        """Shapes recorded so far."""
        return sum(step.replay is not None for step in self._steps.values())

    def logits(self, running: Sequence[RunningSample]) -> Tensor:
        """Float32 logits ``[rows, vocabulary]``, valid until the next call."""
        shape = width_of(len(running), self._own.slots), self._keys(running)
        step = self._steps.get(shape)
        if step is None:
            step = self._steps[shape] = self._new_step(*shape)
        step.inputs.load(running)
        return self._run(step)[: len(running)]

    def _keys(self, running: Sequence[RunningSample]) -> int:
        """How many own keys a step looks at; a kernel finds the end of each slot by itself."""
        if self._kernel is not None:
            return self._own.capacity
        longest = max(sample.cached for sample in running) + 1
        return min(self._own.capacity, LEAST_KEYS << (-(-longest // LEAST_KEYS) - 1).bit_length())

    def _new_step(self, width: int, keys: int) -> _Step:
        inputs = StepInputs(width, self._prompts.slots, self._policy.device)
        caches = self._prompts, self._own
        # Not a method of this object, which would then hold itself, and its caches with it, until
        # Python looks for cycles: too late for the trainer, which needs their memory next.
        return _Step(inputs, partial(_logits, self._policy, *caches, self._kernel, inputs, keys))

    def _run(self, step: _Step) -> Tensor:
        step.uses += 1
        if step.replay is not None:
            return step.replay()
        if self._recorder is None:
            return step.work()
        if step.uses > 1:
            step.replay = self._recorder.record(step.work)
            return step.replay()
        try:
            return self._recorder.rehearse(step.work)
        except NotRecordable as reason:
            self._recorder, self.not_recorded = None, str(reason)
            return step.work()


def _logits(
    policy: Policy,
    prompts: SlotCache,
    own: SlotCache,
    kernel: SlotKernel | None,
    inputs: StepInputs,
    keys: int,
) -> Tensor:
    """One step's work."""
    layout = FixedLayout(prompts, own, inputs, keys, kernel)
    return policy.head.logits(policy.hidden_states(inputs.ids, layout.positions, layout))
