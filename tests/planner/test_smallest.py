"""The smallest set of cards: every smaller one that could be asked for does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roost.errors import ConfigError
from roost.planner.cards import registry
from roost.planner.layouts import choose
from roost.planner.models import find_shape
from roost.planner.request import Hardware, Request, Training, Wishes
from roost.planner.search import smallest


def request(model: str, card: str, method: str = "lora") -> Request:
    training = Training(method=method)  # type: ignore[arg-type]
    return Request(find_shape(model), Hardware(registry().card(card)), training=training)


@pytest.mark.parametrize(
    ("model", "card", "method"),
    [
        ("Qwen3-0.6B", "H100", "lora"),
        ("Qwen3-32B", "A100", "lora"),
        ("Llama-3.3-70B", "A100", "full"),
        ("Llama-3.3-70B", "RTX PRO 6000", "full"),
    ],
)
def test_the_next_smaller_set_does_not_fit(model: str, card: str, method: str) -> None:
    asked = request(model, card, method)
    found = smallest(asked)
    assert found.fits
    hardware = found.request.hardware
    if hardware.nodes > 1:
        fewer = replace(hardware, nodes=hardware.nodes - 1)
    elif hardware.gpus > 1:
        fewer = replace(hardware, gpus_per_node=hardware.gpus - 1)
    else:
        return
    assert not choose(replace(asked, hardware=fewer)).fits


def test_a_number_of_servers_that_was_given_stays() -> None:
    found = smallest(request("Qwen3-0.6B", "H100"), nodes=3)
    assert (found.request.hardware.nodes, found.request.hardware.gpus_per_node) == (3, 1)


def test_a_wish_that_no_number_of_cards_grants_is_an_error() -> None:
    asked = replace(request("Qwen3-8B", "H100"), wishes=Wishes(tensor_parallel=3))
    with pytest.raises(ConfigError, match="--tensor-parallel 3: Qwen3-8B has 32"):
        smallest(asked)
