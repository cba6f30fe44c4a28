"""What a forward keeps, against what autograd saves on a real module."""

from __future__ import annotations

import pytest
from torch import Tensor

from roost.bench.batches import random_groups
from roost.bench.memory import kept_bytes
from roost.bench.training import build_trainer, run_config
from roost.planner import activations
from roost.planner.models import find_shape
from roost.training import logprobs
from roost.training.batch import TrainBatch


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_layer_keeps_what_is_planned(method: str) -> None:
    """Distinct storages that a forward saves, a layer and token: of layers 2 to the last."""
    trainer, _ = build_trainer(run_config("tiny", method, 64))
    shape = find_shape("tiny").shape
    batch = TrainBatch.of(
        random_groups(1, 40, [64] * 4, trainer.policy.config.vocab_size), trainer.config
    )
    [pack] = batch.packs(batch.samples, 100_000)

    def forward() -> Tensor:
        return trainer.score(trainer.policy, pack)[0]

    trainer.policy.module.train()
    more = kept_bytes(trainer.policy, forward) - kept_bytes(trainer.policy, forward, layers=1)
    layer = more / (shape.layers - 1) / len(pack)
    planned = activations.layer_bytes(shape, trainer.policy.dtype.itemsize, full=method == "full")
    if method == "lora":
        # Each adapted product keeps what its two small ones have between them.
        linears = 7
        planned += linears * trainer.config.lora.rank * trainer.policy.dtype.itemsize
    assert layer == pytest.approx(planned, rel=0.03)


def test_tiles_are_the_trainers() -> None:
    assert activations.TOKEN_CHUNK == logprobs.TOKEN_CHUNK
    assert activations.VOCABULARY_TILE == logprobs.VOCABULARY_TILE
    assert activations.KEPT_BYTES == logprobs.KEPT_BYTES
