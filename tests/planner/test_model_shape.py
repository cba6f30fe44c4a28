"""Shapes from config.json against transformers' own models, on the meta device where large."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from roost.config import LoraConfig
from roost.errors import ModelError
from roost.planner.model_config import shape_from_config
from roost.training.adapters import add_adapter
from support.small_models import ARCHITECTURES, build

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def count(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parameters_of_the_tested_architectures(architecture: str) -> None:
    model = build(architecture)
    assert shape_from_config(model.config.to_dict()).parameters == count(model)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True, "head_dim": 12}),
        ("llama", {"tie_word_embeddings": False, "num_key_value_heads": None}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"attention_bias": True, "head_dim": 16}),
        ("qwen3_moe", EXPERTS),
        ("gemma", {"head_dim": 8}),
        ("mistral", {"head_dim": None}),
        ("mixtral", {"num_local_experts": 4}),
        ("phi3", {}),
        ("granite", {}),
        ("smollm3", {}),
    ],
)
def test_parameters_of_variants(kind: str, fields: dict[str, Any]) -> None:
    config = CONFIG_MAPPING[kind](**(SMALL | fields))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape_from_config(config.to_dict()).parameters == count(model)


REAL: list[tuple[str, dict[str, Any], int]] = [
    (  # HuggingFaceTB/SmolLM2-135M
        "llama",
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
        },
        134_515_008,
    ),
    (  # Qwen/Qwen3-0.6B
        "qwen3",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
        },
        596_049_920,
    ),
    (  # Qwen/Qwen2.5-7B
        "qwen2",
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
        },
        7_615_616_512,
    ),
]


@pytest.mark.parametrize(("kind", "fields", "published"), REAL)
def test_published_sizes(kind: str, fields: dict[str, Any], published: int) -> None:
    shape = shape_from_config({"model_type": kind, **fields})
    assert shape.parameters == published


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_cache_of_a_token(architecture: str) -> None:
    """What transformers' cache holds after a forward."""
    model = build(architecture)
    model.set_attn_implementation("eager")
    cache = DynamicCache()
    model(input_ids=torch.tensor([[1, 5, 9]]), past_key_values=cache, use_cache=True)
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert 3 * shape_from_config(model.config.to_dict()).kv_elements_per_token() == held


@pytest.mark.parametrize("rank", [1, 8])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_adapter_parameters(architecture: str, rank: int) -> None:
    """Experts and their router take none."""
    shape = shape_from_config(build(architecture).config.to_dict())
    assert shape.adapter_parameters(rank) == adapter_count(architecture, rank, "all-linear")


@pytest.mark.parametrize(
    "targets", ["q_proj", ["q_proj", "v_proj"], ["self_attn.o_proj", "mlp.down_proj"]]
)
def test_adapter_parameters_of_targets(targets: str | list[str]) -> None:
    shape = shape_from_config(build("llama").config.to_dict())
    assert shape.adapter_parameters(4, targets) == adapter_count("llama", 4, targets)


def test_targets_of_one_layer_are_never_planned_too_low() -> None:
    shape = shape_from_config(build("llama").config.to_dict())
    targets = ["layers.1.mlp.up_proj"]
    assert shape.adapter_parameters(4, targets) >= adapter_count("llama", 4, targets) > 0


def adapter_count(architecture: str, rank: int, targets: str | list[str]) -> int:
    adapted = add_adapter(build(architecture), LoraConfig(rank=rank, targets=targets), seed=1)
    return sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def test_a_multimodal_config_is_read_by_its_text_part() -> None:
    text = build("gemma3").config.to_dict()
    wrapped = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 9}}
    assert shape_from_config(wrapped) == shape_from_config(text)


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_missing_field_is_named(field: str) -> None:
    config = {"model_type": "llama", **SMALL}
    del config[field]
    with pytest.raises(ModelError, match=f"no '{field}'.*'llama'"):
        shape_from_config(config)
