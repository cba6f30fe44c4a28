"""Law 1: the gradient of a batch is the same however it is split."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from roost.config import LoraConfig
from roost.samples import Group
from roost.training.adapters import add_adapter
from roost.training.parallel import Ranks
from roost.training.trainer import Trainer
from support.groups import random_groups
from support.small_models import build
from support.trainers import gradient, make_trainer, relative_error

GROUPS = ([3, 9, 5, 1], [[4, 9, 1, 6], [2, 2, 12, 5], [8, 1, 1, 3], [7, 10, 2, 4]])


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "bnpo"])
@pytest.mark.parametrize("importance", ["token", "sequence"])
def test_any_micro_batch_gives_the_same_gradient(loss: str, importance: str) -> None:
    section = {"type": loss, "importance": importance, "beta": 0.0}
    groups = random_groups(*GROUPS)
    whole = gradient(make_trainer(build("llama"), 10_000, loss=section), groups)
    for budget in (1, 17, 30, 61):
        split = gradient(make_trainer(build("llama"), budget, loss=section), groups)
        assert relative_error(whole, split) < 1e-5


@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_corrected_gradient_is_the_same_however_it_is_split(mode: str, level: str) -> None:
    """Into micro-batches, over ranks, and in another order of groups and samples."""
    correction = {"mode": mode, "level": level, "min": 0.7, "max": 1.4}
    groups = random_groups(*GROUPS)
    for sample in (sample for group in groups for sample in group.samples):
        # About the mean of what the model says of these tokens, so that some stay within.
        sample.logprobs = [-5.4] * len(sample.token_ids)
    whole = gradient(make_trainer(build("llama"), correction=correction), groups)
    plain = gradient(make_trainer(build("llama")), groups)
    assert relative_error(plain, whole) > 0.1, "it does correct"
    for budget in (1, 17, 30):
        trainer = make_trainer(build("llama"), budget, correction=correction)
        assert relative_error(whole, gradient(trainer, groups)) < 1e-5
    assert relative_error(whole, _summed(groups, 3, correction=correction)) < 1e-5
    groups.reverse()
    for group in groups:
        group.samples.reverse()
    other = gradient(make_trainer(build("llama"), correction=correction), groups)
    assert relative_error(whole, other) < 1e-5


def test_the_order_of_groups_and_samples_does_not_matter() -> None:
    groups = random_groups(*GROUPS)
    whole = gradient(make_trainer(build("llama")), groups)
    groups.reverse()
    for group in groups:
        group.samples.reverse()
    assert relative_error(whole, gradient(make_trainer(build("llama")), groups)) < 1e-5


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "bnpo"])
def test_samples_that_cannot_move_a_weight_still_count(loss: str) -> None:
    """They are not computed, and the others weigh as if they were."""
    groups = random_groups(*GROUPS)
    for sample in groups[1].samples:
        sample.advantage = 0.0
    section = {"type": loss}
    skipped = gradient(make_trainer(build("llama"), loss=section), groups)
    for sample in groups[1].samples:
        sample.advantage = 1e-30
    computed = gradient(make_trainer(build("llama"), loss=section), groups)
    assert relative_error(computed, skipped) < 1e-5


def test_gradients_of_bfloat16_weights_accumulate_in_float32() -> None:
    import torch

    groups = random_groups(*GROUPS)
    module = build("llama", dtype=torch.bfloat16)
    whole = gradient(make_trainer(module), groups)
    assert all(g.dtype == torch.float32 for g in whole.values())
    split = gradient(make_trainer(build("llama", dtype=torch.bfloat16), 30), groups)
    # Rounding of activations differs between packs; the sums themselves lose nothing more.
    assert relative_error(whole, split) < 0.05


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "bnpo"])
@pytest.mark.parametrize("world", [2, 3, 20])
def test_any_number_of_ranks_gives_the_same_gradient(loss: str, world: int) -> None:
    """The sum over ranks, some of which have nothing to do where there are 20."""
    groups = random_groups(*GROUPS)
    whole = gradient(make_trainer(build("llama"), loss={"type": loss}), groups)
    assert relative_error(whole, _summed(groups, world, loss={"type": loss})) < 1e-5


def test_ranks_share_an_adapters_gradient() -> None:
    groups = random_groups(*GROUPS)

    def trainer(rank: int = 0, world: int = 1) -> Trainer:
        module = add_adapter(build("llama"), LoraConfig(rank=4), seed=1)
        return make_trainer(module, ranks=Ranks(rank, world))

    parts = [gradient(trainer(rank, 2), groups) for rank in range(2)]
    summed = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    assert relative_error(gradient(trainer(), groups), summed) < 1e-5


def _summed(groups: list[Group], world: int, **sections: Any) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for rank in range(world):
        trainer = make_trainer(build("llama"), ranks=Ranks(rank, world), **sections)
        for name, part in gradient(trainer, groups).items():
            total[name] = total[name] + part if name in total else part
    return total
