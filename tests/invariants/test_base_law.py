"""Law 6: training an adapter never changes a base weight, not by one bit."""

from __future__ import annotations

import pytest
import torch

from roost.config import LoraConfig
from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import SamplingParams
from roost.training.adapters import add_adapter
from support.groups import random_groups
from support.small_models import build
from support.trainers import make_trainer


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_base_weights_stay(architecture: str) -> None:
    module = build(architecture, dtype=torch.bfloat16)
    before = {name: p.clone() for name, p in module.state_dict().items()}
    adapted = add_adapter(module, LoraConfig(rank=4), seed=1)
    trainer = make_trainer(
        adapted,
        train={"method": "lora", "learning_rate": 1e-2},
        loss={"beta": 0.1},
    )
    engine = EmbeddedEngine(trainer.policy, None, cache_bytes=2**24)
    groups = random_groups([4, 6], [[5, 3, 8], [2, 7, 4]])
    for step in range(3):
        prompts = [group.prompt for group in groups]
        sampling = SamplingParams(max_completion_tokens=4)
        assert len(list(engine.generate(prompts, 2, sampling, seed=0, step=step))) == 4
        assert trainer.update(groups)["weights/changed"] > 0
    trained = adapted.state_dict()
    for name, tensor in before.items():
        inside = f"base_model.model.{name}"
        if inside not in trained:
            parent, _, leaf = name.rpartition(".")
            inside = f"base_model.model.{parent}.base_layer.{leaf}"
        assert torch.equal(trained[inside], tensor), name
