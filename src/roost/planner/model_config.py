"""Reads the shape of a model from its config.json alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roost.errors import ModelError
from roost.planner.model_shape import Block, Linear, ModelShape

Config = Mapping[str, Any]

_QKV_BIAS = {"qwen2", "qwen2_moe"}
_QK_NORM = {"qwen3", "qwen3_moe", "gemma3_text", "exaone4"}
_WIDE_QK_NORM = {"olmo2", "olmoe"}
"""Query and key norms over all heads at once."""
_FOUR_NORMS = {"gemma2", "gemma3_text", "glm4"}
_TIED_BY_DEFAULT = {"gemma", "gemma2", "gemma3_text", "opt", "smollm3"}
_EXPERTS_AS_WIDE = {"mixtral", "olmoe", "gpt_oss"}
"""An expert is as wide as ``intermediate_size`` says."""
_FUSED_GATE = {"phi3", "glm", "glm4"}
"""Gate and up projection are one linear layer."""
_STATE_SPACE = {"mamba", "mamba2", "qwen3_next", "qwen3_5_text", "granitemoehybrid", "jamba"}


def shape_from_config(config: Config) -> ModelShape:
    """The shape that a config.json describes.

    Args:
        config: Its contents; of a multimodal model, the text part is used.

    Raises:
        ModelError: a field that every decoder has is missing, or the layers are of a kind whose
            cache the planner cannot count.
    """
    config = _text_part(config)
    kind = str(config.get("model_type", ""))
    if kind in _STATE_SPACE:
        raise ModelError(
            f"a {kind!r} model has layers without attention, whose memory cannot be planned yet."
        )
    if kind == "opt":
        return _opt(config)
    sizes = _Sizes.read(config, kind)
    windows = _windows(config, kind)
    dense, sparse = _feed_forwards(config, kind, sizes)
    kinds = _layer_kinds(config, windows)
    blocks = tuple(
        Block(
            count=count,
            linears=(*_attention(config, kind, sizes), *(sparse if is_sparse else dense)),
            norm_parameters=_norms(config, kind, sizes),
            kv_elements=_kv_elements(config, sizes),
            window=window,
        )
        for (is_sparse, window), count in kinds.items()
    )
    has_experts = any(is_sparse for is_sparse, _ in kinds)
    per_token = int(config.get("num_experts_per_tok") or 0)
    shared = int(config.get("n_shared_experts") or 0)
    return ModelShape(
        model_type=kind,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate=sizes.expert_width if has_experts else sizes.intermediate,
        vocabulary=_field(config, "vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", kind in _TIED_BY_DEFAULT)),
        blocks=blocks,
        experts=sizes.experts if has_experts else 0,
        active_experts=per_token + shared if has_experts else 0,
        latent_attention=bool(config.get("kv_lora_rank")),
        max_positions=int(config.get("max_position_embeddings") or 0),
    )


def _text_part(config: Config) -> Config:
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    # A multimodal config ties the head at its top level, not in its text part.
    tied = config.get("tie_word_embeddings")
    return text if tied is None else {"tie_word_embeddings": tied, **text}


@dataclass(frozen=True, slots=True)
class _Sizes:
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    experts: int
    expert_width: int

    @classmethod
    def read(cls, config: Config, kind: str) -> _Sizes:
        hidden, heads = _field(config, "hidden_size"), _field(config, "num_attention_heads")
        intermediate = _field(config, "intermediate_size")
        experts = config.get("num_experts") or config.get("num_local_experts")
        experts = int(experts or config.get("n_routed_experts") or 0)
        return cls(
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=intermediate,
            experts=experts,
            expert_width=intermediate
            if kind in _EXPERTS_AS_WIDE
            else int(config.get("moe_intermediate_size") or intermediate),
        )


def _attention(config: Config, kind: str, s: _Sizes) -> Iterator[Linear]:
    if config.get("kv_lora_rank"):
        yield from _latent_attention(config, s)
        return
    queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    if kind == "phi3":
        yield Linear("qkv_proj", s.hidden, queries + 2 * keys)
        yield Linear("o_proj", queries, s.hidden)
        return
    asked = bool(config.get("attention_bias", kind == "gpt_oss"))
    bias = asked or kind in _QKV_BIAS
    yield Linear("q_proj", s.hidden, queries, bias)
    yield Linear("k_proj", s.hidden, keys, bias)
    yield Linear("v_proj", s.hidden, keys, bias)
    yield Linear("o_proj", queries, s.hidden, asked and kind not in {*_QKV_BIAS, "glm4", "glm"})


def _latent_attention(config: Config, s: _Sizes) -> Iterator[Linear]:
    """DeepSeek-V2 (arXiv:2405.04434), section 2.1."""
    rope, plain = _field(config, "qk_rope_head_dim"), _field(config, "qk_nope_head_dim")
    values, latent = _field(config, "v_head_dim"), _field(config, "kv_lora_rank")
    query_rank = config.get("q_lora_rank")
    queries = s.heads * (rope + plain)
    bias = bool(config.get("attention_bias", False))
    if query_rank:
        yield Linear("q_a_proj", s.hidden, int(query_rank), bias)
        yield Linear("q_b_proj", int(query_rank), queries)
    else:
        yield Linear("q_proj", s.hidden, queries)
    yield Linear("kv_a_proj_with_mqa", s.hidden, latent + rope, bias)
    yield Linear("kv_b_proj", latent, s.heads * (plain + values))
    yield Linear("o_proj", s.heads * values, s.hidden, bias)


def _feed_forwards(
    config: Config, kind: str, s: _Sizes
) -> tuple[tuple[Linear, ...], tuple[Linear, ...]]:
    """The feed-forward of a dense layer and of one with experts."""
    bias = bool(config.get("mlp_bias", False))
    if kind in _FUSED_GATE:
        fused = Linear("gate_up_proj", s.hidden, 2 * s.intermediate)
        return (fused, Linear("down_proj", s.intermediate, s.hidden)), ()
    dense = tuple(_gated(s.hidden, s.intermediate, bias))
    if not s.experts:
        return dense, ()
    active = int(config.get("num_experts_per_tok") or 1)
    expert_bias = kind == "gpt_oss"
    sparse = [Linear("gate", s.hidden, s.experts, expert_bias, adapted=False)]
    sparse += _gated(s.hidden, s.expert_width, expert_bias, s.experts, active, adapted=False)
    shared = int(config.get("n_shared_experts") or 0) * s.expert_width
    if kind == "qwen2_moe":
        shared = int(config.get("shared_expert_intermediate_size") or 0)
        sparse.append(Linear("shared_expert_gate", s.hidden, 1))
    if shared:
        sparse += _gated(s.hidden, shared, bias)
    return dense, tuple(sparse)


def _gated(
    hidden: int, width: int, bias: bool, copies: int = 1, active: int = 1, *, adapted: bool = True
) -> Iterator[Linear]:
    yield Linear("gate_proj", hidden, width, bias, copies, active, adapted)
    yield Linear("up_proj", hidden, width, bias, copies, active, adapted)
    yield Linear("down_proj", width, hidden, bias, copies, active, adapted)


def _norms(config: Config, kind: str, s: _Sizes) -> int:
    norms = s.hidden * (4 if kind in _FOUR_NORMS else 2)
    if kind in _QK_NORM:
        norms += 2 * s.head_dim
    if kind in _WIDE_QK_NORM:
        norms += (s.heads + s.kv_heads) * s.head_dim
    if kind == "gpt_oss":
        norms += s.heads  # attention sinks
    if config.get("kv_lora_rank"):
        norms += int(config["kv_lora_rank"]) + int(config.get("q_lora_rank") or 0)
    return norms


def _kv_elements(config: Config, s: _Sizes) -> int:
    if config.get("kv_lora_rank"):
        return int(config["kv_lora_rank"]) + _field(config, "qk_rope_head_dim")
    return 2 * s.kv_heads * s.head_dim


def _windows(config: Config, kind: str) -> list[int | None]:
    """The window of each layer; None is full attention."""
    layers = _field(config, "num_hidden_layers")
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return [None] * layers
    types = config.get("layer_types")
    if types:
        return [int(window) if "sliding" in str(one) else None for one in types][:layers]
    if kind in {"mistral", "mixtral", "phi3"}:
        return [int(window)] * layers
    if kind in {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}:
        first = int(config.get("max_window_layers") or 0)
        on = bool(config.get("use_sliding_window", False))
        return [int(window) if on and i >= first else None for i in range(layers)]
    pattern = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6}.get(kind)
    pattern = int(config.get("sliding_window_pattern") or pattern or 0)
    if not pattern:
        return [None] * layers
    return [None if (i + 1) % pattern == 0 else int(window) for i in range(layers)]


def _layer_kinds(config: Config, windows: list[int | None]) -> dict[tuple[bool, int | None], int]:
    """How many layers there are of each kind: with or without experts, and with which window."""
    counts: dict[tuple[bool, int | None], int] = {}
    for index, window in enumerate(windows):
        key = (_is_sparse(config, index), window)
        counts[key] = counts.get(key, 0) + 1
    return counts


def _is_sparse(config: Config, index: int) -> bool:
    experts = config.get("num_experts") or config.get("num_local_experts")
    if not (experts or config.get("n_routed_experts")):
        return False
    if index < int(config.get("first_k_dense_replace") or 0):
        return False
    if index in (config.get("mlp_only_layers") or ()):
        return False
    return (index + 1) % int(config.get("decoder_sparse_step") or 1) == 0


def _opt(config: Config) -> ModelShape:
    """OPT (arXiv:2205.01068): learned positions, biases everywhere, two-layer feed-forward."""
    hidden, width = _field(config, "hidden_size"), _field(config, "ffn_dim")
    heads, layers = _field(config, "num_attention_heads"), _field(config, "num_hidden_layers")
    positions = _field(config, "max_position_embeddings")
    linears = (
        *(Linear(name, hidden, hidden, True) for name in ("q_proj", "k_proj", "v_proj")),
        Linear("out_proj", hidden, hidden, True),
        Linear("fc1", hidden, width, True),
        Linear("fc2", width, hidden, True),
    )
    return ModelShape(
        model_type="opt",
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=width,
        vocabulary=_field(config, "vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        blocks=(Block(layers, linears, 4 * hidden, 2 * hidden),),
        # Positions start at an offset of 2, and the final norm has a bias too.
        extra_parameters=(positions + 2) * hidden + hidden,
        max_positions=positions,
    )


def _field(config: Config, name: str) -> int:
    value = config.get(name)
    if value is None:
        raise ModelError(
            f"config.json has no {name!r}, so the memory of a {config.get('model_type')!r} model "
            "cannot be planned."
        )
    return int(value)
