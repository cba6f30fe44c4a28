"""Law 4: without a learning rate no weight moves; without advantage there is no gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from roost.config import LoraConfig
from roost.model.source import tiny_model_folder
from roost.run import checkpoint
from roost.run.metrics import read_metrics
from roost.training.adapters import add_adapter
from support.groups import random_groups
from support.small_models import build, with_adapter
from support.tiny_runs import train_tiny
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


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_run_without_a_learning_rate_ends_as_it_began(method: str, tmp_path: Path) -> None:
    """Engine, rewards, trainer, checkpoints: nothing of it moves a weight, and what engine and
    trainer score stays as near as at the first step."""
    run = train_tiny(
        tmp_path / "run",
        tmp_path,
        {
            "train": {"method": method, "learning_rate": 0.0, "steps": 4},
            "loss": {"beta": 0.1},
            "output": {"checkpoint_every": 1, "keep_checkpoints": 4},
        },
    )
    points = [checkpoint.load(run.folder.checkpoints, step).weights for step in (1, 2, 3, 4)]
    assert all(torch.equal(points[0][n], w) for point in points for n, w in point.items())
    if method == "full":
        shipped = load_file(tiny_model_folder() / "model.safetensors")
        assert all(torch.equal(points[-1][name], tensor) for name, tensor in shipped.items())
    else:
        assert not any(tensor.any() for name, tensor in points[-1].items() if "lora_B" in name)
    rows = read_metrics(run.folder.metrics)
    assert len(rows) == 4
    for row in rows:
        assert row["policy_version"] == row["step"]
        assert row["sampling/logp_difference_max"] < 1e-5
        assert row["kl"] == pytest.approx(0.0, abs=1e-9)
