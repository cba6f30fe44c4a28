"""Adapters: what is adapted, how it is scaled, and that it starts as the base model."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from roost.config import LoraConfig
from roost.errors import ModelError
from roost.training.adapters import add_adapter
from support.small_models import ARCHITECTURES, build, eager_copy, reference_logits

TOKENS = [1, 5, 9, 33, 70, 12, 4, 88]


def adapt(architecture: str = "llama", seed: int = 1, **config: Any) -> Any:
    return add_adapter(build(architecture), LoraConfig(**({"rank": 4} | config)), seed)


def adapted_names(model: Any) -> set[str]:
    modules = model.get_base_model().named_modules()
    return {name for name, module in modules if isinstance(module, LoraLayer)}


def expected_names(*endings: str, layers: int = 3) -> set[str]:
    return {f"model.layers.{i}.{ending}" for i in range(layers) for ending in endings}


ATTENTION = tuple(f"self_attn.{x}_proj" for x in "qkvo")
FEED_FORWARD = tuple(f"mlp.{x}_proj" for x in ("gate", "up", "down"))


@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if a != "qwen3_moe"])
def test_all_linear_is_every_layer_but_the_head(architecture: str) -> None:
    assert adapted_names(adapt(architecture)) == expected_names(*ATTENTION, *FEED_FORWARD)


def test_fused_experts_and_their_router_are_left_alone() -> None:
    model = adapt("qwen3_moe")
    assert adapted_names(model) == expected_names(*ATTENTION)
    assert not [n for n, p in model.named_parameters() if "mlp" in n and p.requires_grad]


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ("q_proj", expected_names("self_attn.q_proj")),
        (["q_proj", "v_proj"], expected_names("self_attn.q_proj", "self_attn.v_proj")),
        (["mlp.up_proj"], expected_names("mlp.up_proj")),
        (["layers.1.mlp.up_proj"], {"model.layers.1.mlp.up_proj"}),
        (["model.layers.2.self_attn.o_proj"], {"model.layers.2.self_attn.o_proj"}),
    ],
)
def test_name_endings(targets: str | list[str], names: set[str]) -> None:
    assert adapted_names(adapt(targets=targets)) == names


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("q_prj", "Did you mean 'q_proj'?"),
        ("proj", "matches no linear layer"),  # an ending is a whole name, not part of one
        ("lm_head", "Known: .*q_proj"),
        ("input_layernorm", "matches no linear layer"),
        ("", "matches no linear layer"),
    ],
)
def test_a_name_that_matches_nothing_is_refused(target: str, hint: str) -> None:
    with pytest.raises(ModelError, match=rf"lora\.targets: '{target}' matches no linear") as error:
        adapt(targets=["q_proj", target])
    assert re.search(hint, str(error.value))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_new_adapter_is_the_base_model(architecture: str) -> None:
    model = build(architecture)
    base = reference_logits(eager_copy(model), TOKENS)
    adapted = add_adapter(model, LoraConfig(rank=4), seed=1)
    adapted.get_base_model().set_attn_implementation("eager")
    assert torch.equal(reference_logits(adapted, TOKENS), base)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 12.0 / 9.0), (True, 12.0 / 3.0)])
def test_scaling(rslora: bool, scale: float) -> None:
    """alpha / rank, or alpha / sqrt(rank), times B A x."""
    model = adapt(rank=9, alpha=12.0, rslora=rslora)
    layer: Any = model.get_base_model().model.layers[0].self_attn.q_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        b.normal_()
    x = torch.randn(5, a.shape[1])
    added = layer(x) - layer.base_layer(x)
    assert a.shape[0] == b.shape[1] == 9
    torch.testing.assert_close(added, scale * x @ a.T @ b.T, rtol=1e-4, atol=1e-4)


def lora_weights(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach() for n, p in model.named_parameters() if "lora_" in n}


def test_the_seed_decides_the_start_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    first = lora_weights(adapt(seed=5))
    torch.manual_seed(2)
    second = lora_weights(adapt(seed=5))
    other = lora_weights(adapt(seed=6))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(not torch.equal(first[name], other[name]) for name in first if "lora_A" in name)


def test_other_random_draws_are_not_disturbed() -> None:
    torch.manual_seed(3)
    undisturbed = torch.rand(4)
    torch.manual_seed(3)
    adapt(seed=5)
    assert torch.equal(torch.rand(4), undisturbed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_adapter_trains_in_the_precision_of_the_base(dtype: torch.dtype) -> None:
    model = add_adapter(build("llama", dtype=dtype), LoraConfig(rank=4), seed=1)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == set(lora_weights(model))
    assert {p.dtype for p in model.parameters()} == {dtype}


def test_there_is_no_dropout() -> None:
    model = adapt()
    assert not model.training
    model.train()
    assert not [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
