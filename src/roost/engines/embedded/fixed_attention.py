"""Attention of a decode step of fixed shape: every number that changes is read on the device."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from roost.engines.embedded.attention import additive
from roost.engines.embedded.cache import SlotCache
from roost.engines.embedded.kernels import SlotKernel, SlotQueries
from roost.engines.embedded.partial import attention_by_definition
from roost.model.attention import AttentionParams, visible
from roost.model.flash import join


class Inputs(Protocol):
    """What it reads: see ``fixed.StepInputs``."""

    ids: Tensor
    own_lengths: Tensor
    slots: Tensor
    order: Tensor
    places: Tensor
    group_ends: Tensor
    prompt_lengths: Tensor


class FixedLayout:
    """One new token for each row; row i owns slot i of the completions' cache.

    As in ``DecodeLayout`` a query sees its own completion and its group's prompt, each set where
    it lies, and the two results are merged by their log-sum-exps.

    Args:
        prompts: Keys and values of prompts.
        own: Those of completions.
        inputs: Which rows run.
        own_keys: Places of a completion that are looked at; by a kernel, all.
        kernel: What computes plain attention; None for the definition.
    """

    def __init__(
        self,
        prompts: SlotCache,
        own: SlotCache,
        inputs: Inputs,
        own_keys: int,
        kernel: SlotKernel | None,
    ) -> None:
        self._prompts, self._own, self._inputs = prompts, own, inputs
        self._own_keys = own_keys
        self._kernel = kernel
        self._width = len(inputs.ids)
        self._rows = torch.arange(self._width, device=inputs.ids.device)
        self._which: dict[int, tuple[SlotQueries, SlotQueries]] = {}
        self._masks: dict[int | None, tuple[Tensor, Tensor]] = {}
        self.positions = inputs.own_lengths + inputs.prompt_lengths[inputs.slots]
        """``[width]``, each new token's position within its sequence."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """See ``AttentionLayout``."""
        layer, kv_heads = params.layer, key.shape[1]
        self._own.keys[layer][self._rows, :, self._inputs.own_lengths] = key
        self._own.values[layer][self._rows, :, self._inputs.own_lengths] = value
        # Query heads that share a key head are queries of that head: no key is read twice.
        rows = query.reshape(self._width, kv_heads, -1, query.shape[2])
        longest = self._prompts.capacity + self._own.capacity
        if self._kernel is not None and params.is_plain(longest):
            (own, own_lse), (prompt, prompt_lse) = self._by_kernel(self._kernel, rows, params)
        else:
            (own, own_lse), (prompt, prompt_lse) = self._by_definition(rows, params)
        output, _ = join(own.float(), own_lse, prompt, prompt_lse)
        return output.to(query.dtype).flatten(1, 2)

    def _by_kernel(
        self, kernel: SlotKernel, rows: Tensor, params: AttentionParams
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Parts ``[width, kv_heads, repeats, dim]`` and ``[width, kv_heads, repeats]``."""
        repeats = rows.shape[2]
        own_which, prompt_which = self._queries(repeats)
        queries = rows.transpose(1, 2)  # [width, repeats, kv_heads, dim]

        def part(
            ordered: Tensor, cache: SlotCache, slots: int, which: SlotQueries
        ) -> tuple[Tensor, Tensor]:
            keys, values = (
                tensors[params.layer][:slots].transpose(1, 2)
                for tensors in (cache.keys, cache.values)
            )
            output, lse = kernel(
                ordered.flatten(0, 1).contiguous(), keys, values, which, params.scale
            )
            split = (self._width, repeats, *output.shape[1:])
            return output.view(split).transpose(1, 2), lse.reshape(split[:3]).mT

        own = part(queries, self._own, self._width, own_which)
        order, places = self._inputs.order, self._inputs.places
        sorted_prompt = part(queries[order], self._prompts, self._prompts.slots, prompt_which)
        return own, (sorted_prompt[0][places], sorted_prompt[1][places])

    def _queries(self, repeats: int) -> tuple[SlotQueries, SlotQueries]:
        """Who sees what of completions and prompts; made once, used by all layers."""
        if repeats not in self._which:
            inputs, narrow = self._inputs, torch.int32
            every = torch.arange(self._width + 1, device=self._rows.device, dtype=narrow)
            own = SlotQueries(every * repeats, repeats, (inputs.own_lengths + 1).to(narrow))
            ends = (inputs.group_ends * repeats).to(narrow)
            lengths = inputs.prompt_lengths.to(narrow)
            self._which[repeats] = own, SlotQueries(ends, self._width * repeats, lengths)
        return self._which[repeats]

    def _by_definition(
        self, rows: Tensor, params: AttentionParams
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The same parts, each row with a copy of its prompt: windows, caps and float32."""
        own_mask, prompt_mask = self._mask(params.window)
        own, prompts = (
            (cache.keys[params.layer], cache.values[params.layer])
            for cache in (self._own, self._prompts)
        )
        seen = slice(0, self._own_keys)
        return (
            attention_by_definition(
                rows,
                own[0][: self._width, :, seen],
                own[1][: self._width, :, seen],
                own_mask,
                params.scale,
                params.softcap,
            ),
            attention_by_definition(
                rows,
                prompts[0][self._inputs.slots],
                prompts[1][self._inputs.slots],
                prompt_mask,
                params.scale,
                params.softcap,
            ),
        )

    def _mask(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Additive masks ``[width, 1, 1, keys]`` of both key sets, for all layers of a window."""
        if window not in self._masks:
            device, inputs = self._rows.device, self._inputs
            own_keys = torch.arange(self._own_keys, device=device)
            own = visible(inputs.own_lengths[:, None], own_keys, window)
            keys = torch.arange(self._prompts.capacity, device=device)
            prompt = visible(self.positions[:, None], keys, window)
            prompt = prompt & (keys < inputs.prompt_lengths[inputs.slots][:, None, None])
            self._masks[window] = additive(own)[:, None], additive(prompt)[:, None]
        return self._masks[window]
