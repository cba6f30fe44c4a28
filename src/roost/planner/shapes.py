"""The shape of a model, from its config.json alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roost.errors import ModelError


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear layers of one kind within a decoder layer."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    copies: int = 1
    """How many there are in a layer: one an expert."""

    @property
    def parameters(self) -> int:
        """Weights and biases of all copies."""
        return self.copies * (self.inputs * self.outputs + (self.outputs if self.bias else 0))

    def adapter_parameters(self, rank: int) -> int:
        """LoRA parameters of all copies: ``rank * (inputs + outputs)`` each."""
        return self.copies * rank * (self.inputs + self.outputs)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the planner needs of a decoder-only model with grouped-query attention."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied_embeddings: bool
    linears: tuple[Linear, ...]
    """The linear layers of one decoder layer."""
    other_parameters: int
    """Of one decoder layer: its norms, and the router of its experts, which takes no adapter."""
    experts: int = 0
    """Experts of a layer; 0 in a dense model."""

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer."""
        return sum(linear.parameters for linear in self.linears) + self.other_parameters

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        embeddings = self.embedding_parameters * (1 if self.tied_embeddings else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    def adapter_parameters(self, rank: int, targets: str | list[str] = "all-linear") -> int:
        """LoRA parameters of the targeted linear layers. Experts in one tensor are not linear.

        A target that names the layers of one place ("layers.0.mlp.up_proj") counts in all layers:
        the plan is then too high, never too low.
        """
        names = [targets] if isinstance(targets, str) else targets
        endings = {name.rpartition(".")[2] for name in names}
        chosen = [
            linear
            for linear in self.linears
            if linear.copies == 1 and (targets == "all-linear" or linear.name in endings)
        ]
        return self.layers * sum(linear.adapter_parameters(rank) for linear in chosen)

    def kv_elements_per_token(self) -> int:
        """Numbers that the cache holds for a token: ``2 * layers * kv_heads * head_dim``."""
        return 2 * self.layers * self.kv_heads * self.head_dim


_QKV_BIAS = {"qwen2", "qwen2_moe"}
_QK_NORM = {"qwen3", "qwen3_moe", "gemma3_text"}
_FOUR_NORMS = {"gemma2", "gemma3_text"}


def shape_from_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a config.json describes.

    Args:
        config: Its contents; of a multimodal model, the text part is used.

    Raises:
        ModelError: a field that every decoder has is missing.
    """
    config = config.get("text_config") or config
    kind = str(config.get("model_type", ""))
    hidden, heads = _field(config, "hidden_size"), _field(config, "num_attention_heads")
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    intermediate = _field(config, "intermediate_size")
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    attention_bias = bool(config.get("attention_bias", kind in _QKV_BIAS)) or kind in _QKV_BIAS
    norms = hidden * (4 if kind in _FOUR_NORMS else 2)
    if kind in _QK_NORM:
        norms += 2 * head_dim
    router = hidden * experts
    sizes = (hidden, heads * head_dim, kv_heads * head_dim)
    return ModelShape(
        model_type=kind,
        layers=_field(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocabulary=_field(config, "vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        linears=(
            *_attention(*sizes, attention_bias, output_bias=kind not in _QKV_BIAS),
            *_feed_forward(config, hidden, intermediate, experts),
        ),
        other_parameters=norms + router,
        experts=experts,
    )


def _attention(
    hidden: int, queries: int, keys: int, bias: bool, *, output_bias: bool
) -> Iterator[Linear]:
    yield Linear("q_proj", hidden, queries, bias)
    yield Linear("k_proj", hidden, keys, bias)
    yield Linear("v_proj", hidden, keys, bias)
    yield Linear("o_proj", queries, hidden, bias and output_bias)


def _feed_forward(
    config: Mapping[str, Any], hidden: int, intermediate: int, experts: int
) -> Iterator[Linear]:
    width, copies = intermediate, 1
    if experts:
        width, copies = int(config.get("moe_intermediate_size") or intermediate), experts
    bias = bool(config.get("mlp_bias", False))
    yield Linear("gate_proj", hidden, width, bias, copies)
    yield Linear("up_proj", hidden, width, bias, copies)
    yield Linear("down_proj", width, hidden, bias, copies)


def _field(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if value is None:
        raise ModelError(
            f"config.json has no {name!r}, so the memory of a {config.get('model_type')!r} model "
            "cannot be planned."
        )
    return int(value)
