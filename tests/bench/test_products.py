"""The floor counts the products of the real work, shape by shape."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from roost.bench.batches import random_groups, spread_lengths
from roost.bench.products import Products
from roost.bench.training import build_trainer, pack_sizes, run_config


def multiplications(module: Any) -> tuple[int, int]:
    """Multiplications a token in the layers, and in the head, counted from weights by name."""
    sizes: Counter[bool] = Counter()
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            sizes["embed" in name] += parameter.numel()
    return sizes[False], sizes[True]


@pytest.fixture(scope="module")
def trainers() -> dict[str, Any]:
    return {m: build_trainer(run_config("tiny", m, 16))[0] for m in ("full", "lora")}


def flops(work: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_decoding_computes_prompts_once_and_a_row_for_each_completion(trainers) -> None:
    module = trainers["full"].policy.module
    layers, head = multiplications(module)  # the head is tied to the embedding
    products = Products.of(module)

    counted = flops(lambda: products.decode([5, 7], generations=3, tokens=4))

    by_hand = layers * 12 + head * 2 + 3 * 6 * (layers + head)
    assert counted == 2 * by_hand


def test_full_training_is_three_products_a_layer(trainers) -> None:
    module = trainers["full"].policy.module
    layers, head = multiplications(module)

    counted = flops(lambda: Products.of(module).train([(10, 4), (6, 0)]))

    assert counted == 2 * 3 * (layers * 16 + head * 4)


def test_frozen_layers_have_no_weight_product(trainers) -> None:
    module = trainers["lora"].policy.module
    products = Products.of(module)
    adapter = sum(p.numel() for n, p in module.named_parameters() if "lora_" in n)
    frozen = sum(p.numel() for n, p in module.named_parameters() if "base_layer.weight" in n)
    _, head = multiplications(trainers["full"].policy.module)

    counted = flops(lambda: products.train([(10, 4)]))

    assert counted == 2 * (10 * (3 * adapter + 2 * frozen) + 4 * 2 * head)


def test_the_floor_of_training_has_the_tokens_that_the_trainer_computes(trainers) -> None:
    trainer = trainers["full"]
    groups = random_groups(3, 9, spread_lengths(4, 16), vocabulary=200)
    metrics = trainer.update(groups)

    sizes = pack_sizes(trainer, groups)

    assert sum(tokens for tokens, _ in sizes) == metrics["tokens/computed"]
    assert sum(scored for _, scored in sizes) == metrics["tokens/trained"]


def test_a_divided_groups_prompt_is_counted_once(trainers) -> None:
    trainer = trainers["full"]
    groups = random_groups(1, 30, [16, 16, 16, 16], vocabulary=200)
    before = trainer.micro_batch_tokens
    trainer.micro_batch_tokens = 64
    try:
        metrics = trainer.update(groups)
        sizes = pack_sizes(trainer, groups)
    finally:
        trainer.micro_batch_tokens = before

    assert len(sizes) > 2
    assert sum(tokens for tokens, _ in sizes) == metrics["tokens/computed"] == 30 + 4 * 15


@torch.no_grad()
def test_random_groups_are_the_same_each_time() -> None:
    first, second = (random_groups(2, 5, [3, 4], vocabulary=50) for _ in range(2))
    assert first == second
    assert all(sample.advantage != 0.0 for group in first for sample in group.samples)
