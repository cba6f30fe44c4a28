"""Every tensor of the trainer is made where the model is: a GPU would refuse to mix devices."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from roost.config import LoraConfig
from roost.training.adapters import add_adapter
from roost.training.batch import TrainBatch
from support.another_device import DEVICE, another_device
from support.groups import random_groups
from support.small_models import build
from support.trainers import make_trainer


@pytest.mark.parametrize("budget", [10_000, 16])
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_an_update(method: str, budget: int, level: str) -> None:
    """Whole groups in a pack, and groups whose prompt has a forward of its own; corrected."""
    model: Any = build("llama", dtype=torch.bfloat16)
    if method == "lora":
        model = add_adapter(model, LoraConfig(rank=4), seed=0)
    groups = random_groups([4, 6], [[5, 3, 8], [2, 7, 4]])
    with another_device():
        correction = {"mode": "mask", "level": level}
        trainer = make_trainer(
            model.to(DEVICE), budget, train={"method": method}, correction=correction
        )
        batch = TrainBatch.of(groups, trainer.config)
        trainer.optimizer.zero_grad()
        trainer.accumulate(batch, batch.parts[0], defaultdict(float))
        gradients = trainer.optimizer.gradients()
        assert {gradient.device for gradient in gradients.values()} == {DEVICE}
