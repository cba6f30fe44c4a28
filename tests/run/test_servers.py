"""Which cards the servers of a run are started on."""

from __future__ import annotations

import pytest
import torch

from roost.errors import ConfigError
from roost.run.servers import _cards


@pytest.mark.parametrize(
    ("cards", "replicas", "shards", "expected"),
    [
        (5, 2, 2, [[1, 2], [3, 4]]),
        (3, 2, 1, [[1], [2]]),
        (3, 3, 1, [[1], [2], [1]]),
        (1, 2, 1, [[0], [0]]),
    ],
)
def test_servers_take_the_cards_beside_the_trainers(
    cards: int,
    replicas: int,
    shards: int,
    expected: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    assert [_cards(number, shards, "cuda") for number in range(replicas)] == expected
    assert _cards(0, shards, "cpu") is None


@pytest.mark.parametrize("cards", [1, 2])
def test_a_server_that_needs_more_cards_is_refused(
    cards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    says = f"rollout.tensor_parallel = 2: .* beside the trainer's there are {cards - 1}"
    with pytest.raises(ConfigError, match=says):
        _cards(0, 2, "cuda")
