"""The prompt of a divided group, computed once for all packs of its completions.

The prompt's forward keeps its keys and values. Each pack of completions reads them as leaves of its
own graph, and its backward adds into their gradients; the prompt's one backward starts from the
sums. By the chain rule that is the gradient of a forward that holds the whole group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from roost.model.attention import AttentionLayout, AttentionParams
from roost.model.parts import Segment
from roost.model.policy import Policy
from roost.training.attention import KeysValues, PackLayout


class SharedPrompt:
    """A prompt's keys, values and last hidden state, and the gradients that packs leave on them.

    Args:
        policy: What computes it.
        token_ids: The prompt.
    """

    def __init__(self, policy: Policy, token_ids: Sequence[int]) -> None:
        device = policy.device
        self.length = len(token_ids)
        layout = _KeepingLayout(PackLayout([Segment(0, self.length)], device))
        ids = torch.tensor(token_ids, device=device)
        hidden = policy.hidden_states(ids, torch.arange(self.length, device=device), layout)
        self._last = _Joint(hidden[-1:])
        self._kept = {
            layer: (_Joint(key), _Joint(value)) for layer, (key, value) in layout.kept.items()
        }

    @property
    def last(self) -> Tensor:
        """``[1, width]``: the hidden state that predicts every completion's first token."""
        return self._last.leaf

    @property
    def keys_values(self) -> KeysValues:
        """What packs read."""
        return {layer: (key.leaf, value.leaf) for layer, (key, value) in self._kept.items()}

    def backward(self) -> None:
        """Pass on what the packs have left, into the gradients of the parameters."""
        joints = [self._last, *(joint for pair in self._kept.values() for joint in pair)]
        reached = [(j.source, j.gradient) for j in joints if j.gradient is not None]
        torch.autograd.backward(
            [source for source, _ in reached],
            [gradient.to(source.dtype) for source, gradient in reached],
        )


class _Joint:
    """Where two graphs meet: a result of one, a leaf of the other."""

    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.gradient: Tensor | None = None
        """Float32 sum over packs: in bfloat16 each addition would round."""
        self.leaf = source.detach()
        if source.requires_grad:
            self.leaf.requires_grad_()
            self.leaf.register_post_accumulate_grad_hook(self._add)  # type: ignore[no-untyped-call]

    def _add(self, leaf: Tensor) -> None:
        assert leaf.grad is not None
        wide = leaf.grad.to(torch.promote_types(leaf.dtype, torch.float32))
        self.gradient = wide if self.gradient is None else self.gradient.add_(wide)
        leaf.grad = None


class _KeepingLayout:
    """A layout that keeps each layer's keys and values."""

    def __init__(self, inner: AttentionLayout) -> None:
        self._inner = inner
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        # Only at first: under checkpointing, backward comes here again with copies.
        self.kept.setdefault(params.layer, (key, value))
        return self._inner.attend(query, key, value, params)
