"""Processes that cannot be are refused before any of them waits for another."""

from __future__ import annotations

import pytest
import torch

from roost.errors import ConfigError
from roost.training.launched import open_ranks


def _launched(patch: pytest.MonkeyPatch, world: int) -> None:
    """The environment of the last process that ``torchrun`` starts."""
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        patch.setenv(name, str(world))
    for name in ("RANK", "LOCAL_RANK"):
        patch.setenv(name, str(world - 1))


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _launched(monkeypatch, 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    says = "torchrun started 3 processes and this machine has 2 GPUs. Start at most 2"
    with pytest.raises(ConfigError, match=says), open_ranks("auto"):
        pass


@pytest.mark.parametrize(
    ("world", "shards", "says"),
    [
        (1, 2, r"rollout.tensor_parallel = 2: each engine takes 2 processes, and there is 1\. "),
        (6, 4, "and there are 6. Set it to one of 1, 2, 3, 6, or start a multiple of 4"),
    ],
)
def test_engines_that_do_not_come_out_even_are_refused(
    world: int, shards: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _launched(monkeypatch, world)
    with pytest.raises(ConfigError, match=says), open_ranks("cpu", tensor_parallel=shards):
        pass
