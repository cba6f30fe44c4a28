"""Small random models, one of each architecture that Roost is tested on.

They are big enough that every feature matters (grouped heads, sliding windows shorter than the
test sequences, soft caps, experts) and small enough that a forward takes milliseconds.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from roost.model.attention import NAME, register

VOCABULARY = 96
"""Token ids of the small models are 0 to VOCABULARY - 1; 0 is padding, 1 begin, 2 end."""
WINDOW = 7
"""Sliding window of the models that have one."""

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GEMMA: dict[str, Any] = {"sliding_window": WINDOW, "query_pre_attn_scalar": 16}
_GEMMA_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_BUILDERS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "gemma2": (
        Gemma2Config,
        Gemma2ForCausalLM,
        _GEMMA
        | {
            "layer_types": _GEMMA_LAYERS,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        _GEMMA | {"layer_types": _GEMMA_LAYERS, "attention_dropout": 0.0},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": WINDOW}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
        },
    ),
}
ARCHITECTURES: tuple[str, ...] = tuple(_BUILDERS)
"""Names that ``build`` takes."""


def build(
    architecture: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> PreTrainedModel:
    """A random model in eval mode, loaded for Roost's attention.

    Args:
        architecture: One of ``ARCHITECTURES``.
        seed: Seeds the weights. They are larger than a fresh model's, so that greedy decoding
            wanders and attention is far from uniform.
        dtype: Of the weights.
        **changes: Fields of the configuration to replace.
    """
    register()
    config_class, model_class, extra = _BUILDERS[architecture]
    config = config_class(**(_SHAPE | extra | changes))
    config._attn_implementation = NAME
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            spread = 0.1 if parameter.dim() == 1 else 1.3 * parameter.shape[-1] ** -0.5
            shift = 1.0 if _scales_from_one(architecture, name) else 0.0
            parameter.copy_(shift + spread * noise)
    return model.to(dtype).eval()


def with_adapter(model: PreTrainedModel, seed: int = 0, rank: int = 4, **changes: Any) -> PeftModel:
    """A LoRA adapter around the model whose B is random instead of zero, so that it matters."""
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM", **changes
    )
    wrapped = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    return wrapped.eval()


def eager_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights behind transformers' own attention: the reference of most tests."""
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    return twin.eval()


def reference_logits(eager: PreTrainedModel, token_ids: list[int]) -> Tensor:
    """Float32 logits ``[tokens, vocabulary]`` of one sequence by transformers' own forward."""
    with torch.inference_mode():
        logits: Tensor = eager(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits.float()


def _scales_from_one(architecture: str, name: str) -> bool:
    """Whether a parameter is a norm's weight that multiplies directly (Gemma's adds one)."""
    return "norm" in name and not architecture.startswith("gemma")
