"""How a decode step is computed: over what runs just now on a CPU, in fixed shapes on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from roost.engines.embedded.attention import DecodeLayout, Row
from roost.engines.embedded.cache import LayerShape, SlotCache
from roost.engines.embedded.fixed import FixedDecoder
from roost.engines.embedded.graphs import CudaRecorder, Recorder
from roost.engines.embedded.kernels import Choice, choose_kernel
from roost.engines.embedded.scheduler import RunningSample
from roost.model.policy import Policy


class Decoder(Protocol):
    """Computes the next tokens' logits of the rows that run, and extends their cache."""

    def logits(self, running: Sequence[RunningSample]) -> Tensor:
        """Float32 ``[rows, vocabulary]``, valid until the next call."""
        ...


class DirectDecoder:
    """Steps of whatever shape: nothing is padded but the keys.

    Args:
        policy: The model.
        prompts: Keys and values of prompts.
        own: Those of completions.
    """

    def __init__(self, policy: Policy, prompts: SlotCache, own: SlotCache) -> None:
        self._policy = policy
        self._prompts, self._own = prompts, own

    def logits(self, running: Sequence[RunningSample]) -> Tensor:
        """See ``Decoder``."""
        rows = [
            Row(sample.group.slot, len(sample.group.prompt.token_ids), sample.cached)
            for sample in running
        ]
        layout = DecodeLayout(self._prompts, self._own, rows)
        last = [sample.token_ids[-1] for sample in running]
        ids = torch.tensor(last, device=self._policy.device)
        return self._policy.head.logits(self._policy.hidden_states(ids, layout.positions, layout))


@dataclass(frozen=True, slots=True)
class Decoding:
    """How an engine decodes; chosen once for a model on a device."""

    fixed: bool
    """In steps of few shapes, which can be recorded."""
    choice: Choice
    """The attention kernel of those."""
    recorded: bool
    """Whether they are."""

    @classmethod
    def of(cls, policy: Policy, layers: list[LayerShape]) -> Decoding:
        """What suits the policy's device."""
        if policy.device.type != "cuda":
            return cls(False, Choice(None, "the CPU's kernel"), recorded=False)
        return cls(True, choose_kernel(layers, policy.dtype, policy.device), recorded=True)

    def decoder(self, policy: Policy, prompts: SlotCache, own: SlotCache) -> Decoder:
        """A decoder over the caches of one ``generate`` call."""
        if not self.fixed:
            return DirectDecoder(policy, prompts, own)
        recorder: Recorder | None = CudaRecorder(policy.device) if self.recorded else None
        return FixedDecoder(policy, prompts, own, self.choice.kernel, recorder)
