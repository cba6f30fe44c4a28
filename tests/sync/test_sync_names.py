"""The name map, both ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roost.errors import EngineError
from roost.model.policy import Policy
from roost.sync.names import NameMap, Piece, TensorInfo, shard_name
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


QKV, EMBED = "a.qkv_proj.weight", "embed.weight"


def shards(*pieces: tuple[Piece, Piece, Piece]) -> dict[str, TensorInfo]:
    """An engine whose attention is divided so, and whose embedding each shard holds whole."""
    engine = {}
    for shard, (q, k, v) in enumerate(pieces):
        rows = q.size + k.size + v.size
        engine[shard_name(QKV, shard)] = TensorInfo((rows, 4), F32, pieces=(q, k, v))
        engine[shard_name(EMBED, shard)] = info(5, 4)
    return engine


def rows(start: int, size: int) -> Piece:
    return Piece(0, start, size)


HALVES = (rows(0, 2), rows(0, 1), rows(0, 1)), (rows(2, 2), rows(1, 1), rows(1, 1))
ONE_KV_HEAD = (rows(0, 2), rows(0, 2), rows(0, 2)), (rows(2, 2), rows(0, 2), rows(0, 2))


@pytest.mark.parametrize("pieces", [HALVES, ONE_KV_HEAD])
def test_each_shard_expects_its_piece_of_every_part(pieces: tuple[Any, ...]) -> None:
    names = NameMap(TRAINER, shards(*pieces), FUSED)
    tensors = {name: torch.randn(info.shape) for name, info in TRAINER.items()}
    q, k, v = (tensors[f"a.{part}.weight"] for part in FUSED["qkv_proj"])
    for shard, (of_q, of_k, of_v) in enumerate(pieces):
        joined = names.targets[shard_name(QKV, shard)].expected(tensors)
        assert torch.equal(
            joined,
            torch.cat(
                [
                    q[of_q.start : of_q.start + of_q.size],
                    k[of_k.start : of_k.start + of_k.size],
                    v[of_v.start : of_v.start + of_v.size],
                ]
            ),
        )
        assert torch.equal(
            names.targets[shard_name(EMBED, shard)].expected(tensors), tensors[EMBED]
        )


def test_columns_can_be_divided_too() -> None:
    trainer = {"a.o_proj.weight": info(4, 6)}
    engine = {
        f"a.o_proj.weight/{shard}": TensorInfo((4, 3), F32, pieces=(Piece(1, 3 * shard, 3),))
        for shard in range(2)
    }
    tensor = torch.randn(4, 6)
    names = NameMap(trainer, engine, {})
    found = [target.expected({"a.o_proj.weight": tensor}) for target in names.targets.values()]
    assert torch.equal(torch.cat(found, dim=1), tensor)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        (HALVES[:1], "no shard of the engine holds all rows from 2 on of the model's a.q_proj"),
        ((HALVES[0], HALVES[0]), "no shard of the engine holds all rows from 2 on"),
        (HALVES[1:], "no shard of the engine holds all rows from 0 on"),
        (((rows(0, 2), rows(0, 1), rows(3, 2)),), r"qkv_proj.weight/0 has shape \(5, 4\)"),
    ],
)
def test_what_no_shard_holds_is_named(pieces: tuple[Any, ...], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        NameMap(TRAINER, shards(*pieces), FUSED)


def test_a_layer_divided_in_another_way_is_refused() -> None:
    engine = shards(*HALVES)
    engine[f"{QKV}/1"] = TensorInfo((4, 4), F32, pieces=HALVES[1][:2])
    with pytest.raises(EngineError, match="divides a.qkv_proj.weight/1 in 2, the model's has 3"):
        NameMap(TRAINER, engine, FUSED)


def test_a_rank_compares_the_tensors_in_its_hands() -> None:
    names = NameMap(TRAINER, shards(*HALVES), FUSED)
    mine = names.only([f"{QKV}/1", f"{EMBED}/1"])
    assert set(mine.targets) == mine.written == {f"{QKV}/1", f"{EMBED}/1"}
    assert mine.sources == names.sources, "all is sent to each"
    assert len(names.targets) == 4
