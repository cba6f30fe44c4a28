"""The name map, both ways."""

from __future__ import annotations

import pytest
import torch

from roost.errors import EngineError
from roost.model.policy import Policy
from roost.sync.names import NameMap, TensorInfo
from roost.sync.trainer_side import adapter_tensors, base_tensors, infos
from support.small_models import build, with_adapter

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
F32 = torch.float32


def info(*shape: int, dtype: torch.dtype = F32, padding: int = 0) -> TensorInfo:
    return TensorInfo(shape, dtype, padding)


TRAINER = {
    "embed.weight": info(5, 4),
    "a.q_proj.weight": info(4, 4),
    "a.k_proj.weight": info(2, 4),
    "a.v_proj.weight": info(2, 4),
}
ENGINE = {"embed.weight": info(5, 4, padding=3), "a.qkv_proj.weight": info(8, 4)}


def test_fused_parts_are_joined_in_order_and_padding_is_zeros() -> None:
    names = NameMap(TRAINER, ENGINE, FUSED)
    tensors = {name: torch.randn(info.shape) for name, info in TRAINER.items()}
    joined = names.targets["a.qkv_proj.weight"].expected(tensors)
    parts = [tensors[f"a.{part}.weight"] for part in FUSED["qkv_proj"]]
    assert torch.equal(joined, torch.cat(parts))
    embedding = names.targets["embed.weight"].expected(tensors)
    assert torch.equal(embedding[:5], tensors["embed.weight"])
    assert embedding.shape == (8, 4)
    assert not embedding[5:].any()
    assert names.sources == list(TRAINER)
    assert names.written == set(ENGINE)


@pytest.mark.parametrize(
    ("trainer", "engine", "says"),
    [
        ({"a.o.weight": info(4, 4)}, {}, "the model's a.o.weight is in no tensor of the engine"),
        ({}, {"a.o.weight": info(4, 4)}, "the engine's a.o.weight needs a.o.weight, not in the"),
        ({}, {"a.qkv_proj.weight": info(9, 4)}, r"has shape \(9, 4\), the model's \(8, 4\)"),
        ({"a.v_proj.weight": info(2, 3)}, {}, "a.qkv_proj.weight has shape"),
        (
            {"embed.weight": info(5, 4, dtype=torch.bfloat16)},
            {},
            "embed.weight is torch.float32, the model's torch.bfloat16",
        ),
    ],
)
def test_a_difference_is_printed(
    trainer: dict[str, TensorInfo], engine: dict[str, TensorInfo], says: str
) -> None:
    with pytest.raises(EngineError, match=says):
        NameMap(TRAINER | trainer, ENGINE | engine, FUSED)


def test_a_part_that_is_missing_is_named() -> None:
    trainer = {name: info for name, info in TRAINER.items() if name != "a.k_proj.weight"}
    with pytest.raises(EngineError, match="a.qkv_proj.weight needs a.k_proj.weight"):
        NameMap(trainer, ENGINE, FUSED)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma2", "mistral"])
def test_an_adapter_leaves_the_names_of_the_base_as_they_are(architecture: str) -> None:
    plain = base_tensors(Policy(build(architecture)))
    adapted = Policy(with_adapter(build(architecture)))
    assert infos(base_tensors(adapted)) == infos(plain)
    assert adapter_tensors(adapted)
    assert all(f"{name}.weight" in plain for name in adapter_tensors(adapted))


def test_tied_weights_are_sent_once() -> None:
    found = infos(base_tensors(Policy(build("llama"))))
    assert found["lm_head.weight"].tied_to == "model.embed_tokens.weight"
    names = NameMap(found, found, {})
    assert "lm_head.weight" not in names.sources
    assert "lm_head.weight" in names.targets
