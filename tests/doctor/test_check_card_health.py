from __future__ import annotations

import re
from dataclasses import replace

import pytest

from roost.doctor.checks import card_health
from roost.doctor.facts import Answer, Facts
from roost.doctor.findings import Level
from support.machines import hgx, laptop, only

ROW = "1, NVIDIA H100 80GB HBM3, 00000000:2A:00.0, 81559 MiB, 4 MiB, 580.95.05, "


def with_row(rest: str) -> Facts:
    well = ROW + "Disabled, Default, 0, 5, 16, 16"
    assert well in hgx().smi_gpus.text
    text = hgx().smi_gpus.text.replace(well, ROW + rest)
    return replace(hgx(), smi_gpus=Answer("nvidia-smi", text))


@pytest.mark.parametrize("facts", [hgx(), laptop()])
def test_healthy_cards_and_none_are_well(facts: Facts) -> None:
    assert only(card_health.check(facts)).level is Level.OK


@pytest.mark.parametrize(
    ("rest", "level", "what"),
    [
        ("Disabled, Default, 3, 5, 16, 16", Level.FAULT, "uncorrectable memory errors.*GPU 1: 3"),
        ("Disabled, Default, 0, 5, 8, 16", Level.WARNING, "fewer lanes.*GPU 1: x8 of x16"),
        ("Enabled, Default, 0, 5, 16, 16", Level.WARNING, "GPU 1: split into partitions"),
        (
            "Disabled, Exclusive_Process, 0, 5, 16, 16",
            Level.WARNING,
            "GPU 1: compute mode is Exclusive_Process",
        ),
    ],
)
def test_an_ill_card_is_named(rest: str, level: Level, what: str) -> None:
    found = only(card_health.check(with_row(rest)))
    assert found.level is level
    assert re.search(what, found.what)
