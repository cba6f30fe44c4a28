"""One attention function for every decoder that takes transformers' attention interface.

A caller passes a layout to the model's forward (``model(..., roost_layout=layout)``); every layer
hands its queries, keys and values to that layout. Training packs, engine prefill and engine decode
are three layouts. No global state: the layout travels as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from roost.errors import ModelError

NAME = "roost"
"""The ``attn_implementation`` that models are loaded with."""


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """What a layer says about its attention besides the tensors."""

    layer: int
    """Index of the layer, for caches."""
    scale: float
    """Factor on query-key products before softmax."""
    window: int | None = None
    """Sliding window: a query at position p sees keys at positions p - window + 1 ... p."""
    softcap: float | None = None
    """Scores become softcap * tanh(scores / softcap) before the mask (Gemma 2)."""

    def is_plain(self, longest: int) -> bool:
        """Whether sequences of up to ``longest`` tokens need neither a window nor a soft cap."""
        return self.softcap is None and (self.window is None or self.window >= longest)


class AttentionLayout(Protocol):
    """Where each token of a forward stands, and what it may see."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Attention output ``[tokens, heads, head_dim]``.

        Args:
            query: ``[tokens, heads, head_dim]``, rotary embedding applied.
            key: ``[tokens, kv_heads, head_dim]``, likewise.
            value: ``[tokens, kv_heads, head_dim]``.
            params: The layer's constants.
        """
        ...


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    roost_layout: AttentionLayout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function registered with transformers.

    Tensors arrive as ``[1, heads, tokens, head_dim]``: packs and decode batches are one row.
    """
    if roost_layout is None:
        raise ModelError("this model was loaded for Roost's packed forward; pass roost_layout=...")
    if s_aux is not None:
        raise ModelError(f"{type(module).__name__} uses attention sinks, which cannot be packed")
    if dropout:
        raise ModelError(f"{type(module).__name__} asks for attention dropout; set it to 0")
    params = AttentionParams(
        layer=int(module.layer_idx),  # type: ignore[arg-type]
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    output = roost_layout.attend(
        query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), params
    )
    return output.unsqueeze(0), None


def register() -> None:
    """Make ``attn_implementation="roost"`` known to transformers. Safe to call again."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attention_forward)


def visible(query_positions: Tensor, key_positions: Tensor, window: int | None) -> Tensor:
    """Causal visibility ``[..., queries, keys]`` of keys by position within one sequence."""
    q, k = query_positions.unsqueeze(-1), key_positions.unsqueeze(-2)
    seen = k <= q
    return seen if window is None else seen & (k > q - window)


def softcapped(scores: Tensor, softcap: float | None) -> Tensor:
    """``softcap * tanh(scores / softcap)``, or the scores as they are."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)
