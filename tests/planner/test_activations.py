"""What a forward keeps, against what autograd saves on a real module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roost.bench.batches import random_groups
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
    decoder = trainer.policy.decoder
    batch = TrainBatch.of(
        random_groups(1, 40, [64] * 4, trainer.policy.config.vocab_size), trainer.config
    )
    [pack] = batch.packs(batch.samples, 100_000)

    def kept() -> int:
        own = {p.untyped_storage().data_ptr() for p in trainer.policy.module.parameters()}
        saved: dict[int, int] = {}

        def save(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            result = trainer.score(trainer.policy, pack)
        del result
        return sum(saved.values())

    trainer.policy.module.train()
    all_layers = kept()
    everything = decoder.layers
    decoder.layers = everything[:1]
    decoder.config.num_hidden_layers = 1  # type: ignore[union-attr, assignment]
    layer = (all_layers - kept()) / (shape.layers - 1) / len(pack)
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
