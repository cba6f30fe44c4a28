"""Law 4: without a learning rate no weight moves; without advantage there is no gradient."""

from __future__ import annotations

import pytest
import torch

from roost.config import LoraConfig
from roost.training.adapters import add_adapter
from support.groups import random_groups
from support.small_models import build, with_adapter
from support.trainers import gradient, make_trainer

GROUPS = ([4, 6], [[5, 3, 8], [2, 7, 4]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_no_learning_rate_leaves_every_weight(dtype: torch.dtype, method: str) -> None:
    module = build("qwen2", dtype=dtype)
    if method == "lora":
        module = add_adapter(module, LoraConfig(rank=4), seed=0)
    before = {name: p.clone() for name, p in module.state_dict().items()}
    trainer = make_trainer(module, train={"method": method, "learning_rate": 0.0})
    groups = random_groups(*GROUPS)
    first = trainer.update(groups)
    second = trainer.update(groups)
    assert first["grad_norm"] > 0
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for name in ("sampling/logp_difference_mean", "loss", "entropy", "grad_norm"):
        assert first[name] == second[name], name


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_no_advantage_gives_no_gradient(beta: float) -> None:
    groups = random_groups(*GROUPS)
    for group in groups:
        for sample in group.samples:
            sample.advantage = 0.0
    # With KL to the model itself the divergence is 0 and so is its gradient.
    module = with_adapter(build("llama")) if beta else build("llama")
    trainer = make_trainer(module, loss={"beta": beta}, train={"method": "full"})
    if beta:
        trainer.reference = trainer.policy
        batch_groups = groups
        metrics = trainer.update(batch_groups)
        assert metrics["grad_norm"] < 1e-6
        assert abs(metrics["kl"]) < 1e-6
    else:
        assert all(float(g.abs().max()) == 0.0 for g in gradient(trainer, groups).values())
