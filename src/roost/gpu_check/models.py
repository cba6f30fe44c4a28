"""Models of random weights: small ones that laws are tried on, and real shapes to measure."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from roost.gpu_check.results import CheckFailed, Place
from roost.model.attention import NAME, register
from roost.model.source import tiny_model_folder
from roost.planner.models import built_in_config

VOCABULARY = 512
"""Of the small models."""
_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    # What kernels of GPUs take.
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen3": {},
    "mistral": {"sliding_window": 7},
    "gemma2": {
        "sliding_window": 7,
        "query_pre_attn_scalar": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
    },
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    },
}
"""What each architecture has beside the common shape: grouped heads, windows, caps, experts."""
_STAND_IN: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 1024,
}
"""In place of a real shape with ``--small``."""


def device_of(place: Place) -> torch.device:
    """The device that is checked.

    Raises:
        CheckFailed: torch finds no GPU.
    """
    if place.device == "cuda" and not torch.cuda.is_available():
        raise CheckFailed(
            f"torch {torch.__version__} finds no GPU here; install a CUDA build of torch, or check "
            "a CPU with --device cpu"
        )
    return torch.device(place.device)


def small_model(architecture: str, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Any:
    """A random model behind Roost's attention; the same weights for the same seed.

    Its weights are larger than a fresh model's, so that attention is far from uniform.

    Args:
        architecture: Of ``SMALL_MODELS``.
        device: Where it goes.
        dtype: Of the weights.
        seed: Of the weights.
    """
    register()
    config = AutoConfig.for_model(architecture, **(_SMALL | SMALL_MODELS[architecture]))
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            spread = 0.1 if parameter.dim() == 1 else 1.3 * parameter.shape[-1] ** -0.5
            # Gemma's norms add 1 to their weight; the others' multiply by it.
            scales = "norm" in name and not architecture.startswith("gemma")
            parameter.copy_((1.0 if scales else 0.0) + spread * noise)
    return model.to(device=device, dtype=dtype).eval()


def plain_copy(model: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The same weights, widened, behind transformers' own attention."""
    twin = copy.deepcopy(model).to(dtype)
    twin.set_attn_implementation("eager")
    return twin.eval()


def real_model(name: str, place: Place) -> Path:
    """A folder with a model of a real shape: random bfloat16 weights, the tiny model's tokenizer.

    Made where no check before has made it.

    Args:
        name: A built-in shape of the planner.
        place: With ``small``, the shape is a small one of the same architecture.
    """
    folder = place.path / name
    if folder.is_dir():
        return folder
    beside = place.path / f".{name}.part"
    shape = built_in_config(name) | (_STAND_IN if place.small else {})
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder())
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = AutoConfig.for_model(**shape, bos_token_id=None, **ends)
    torch.manual_seed(0)
    with device_of(place):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    beside.rename(folder)  # Whole or not at all: a check may be ended while it writes.
    return folder
