"""Whether the engine can decode a model, found out by trying on a few tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from roost.engines.embedded.attention import causal_attention
from roost.engines.embedded.cache import LayerShape
from roost.errors import ModelError
from roost.model.attention import NAME, AttentionParams
from roost.model.policy import Policy

_TOKENS = 12
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Mean absolute difference of logits allowed, as a share of their standard deviation."""


def check_supported(policy: Policy) -> list[LayerShape]:
    """What each layer caches, learned from a tiny forward that must equal transformers' own.

    Raises:
        ModelError: The model does not hand all its attention to Roost, or hands it over in a way
            that changes its output. The message names the architecture.
    """
    name = type(policy.base).__name__
    if getattr(policy.config, "is_encoder_decoder", False):
        raise ModelError(f"{name} is an encoder-decoder; Roost trains decoder-only models")
    ids = torch.arange(_TOKENS, device=policy.device) * 7919 % policy.config.vocab_size
    layout = _ProbeLayout()
    with torch.inference_mode(), evaluating(policy.module):
        positions = torch.arange(_TOKENS, device=policy.device)
        ours = policy.head.logits(policy.hidden_states(ids, positions, layout))
        layers = _layer_shapes(layout, policy.config.num_hidden_layers, name)
        with _eager_attention(policy.base):
            theirs = policy.base(input_ids=ids[None], use_cache=False).logits[0].float()
    difference = float((ours - theirs).abs().mean() / theirs.std().clamp_min(1e-6))
    if not difference <= _TOLERANCE.get(policy.dtype, 1e-3):
        raise ModelError(
            f"{name} computes other logits through Roost's attention than through transformers' "
            f"own (mean difference {difference:.3g} standard deviations); it cannot be packed. "
            "Report it with the model's name"
        )
    return layers


class _ProbeLayout:
    """One causal sequence; notes what each layer asked for."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        shape = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        self.shapes[params.layer] = shape
        q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
        return causal_attention(q, k, v, params).transpose(0, 1)


def _layer_shapes(layout: _ProbeLayout, layers: int, name: str) -> list[LayerShape]:
    if sorted(layout.shapes) != list(range(layers)):
        raise ModelError(
            f"{name} has {layers} layers, of which {len(layout.shapes)} use attention through "
            "transformers' attention interface; Roost needs all of them (no linear attention or "
            "state-space layers). Choose a decoder-only transformer"
        )
    return [layout.shapes[layer] for layer in range(layers)]


@contextmanager
def _eager_attention(model: nn.Module) -> Iterator[None]:
    model.set_attn_implementation("eager")  # type: ignore[operator]
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)  # type: ignore[operator]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode within; afterwards every submodule is in the mode it was in before."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
