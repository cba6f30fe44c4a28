"""Medians, rates and ratios, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from roost.bench.turns import Turn, ratios_of, row_of

TURNS = [
    Turn(10.0, 4.0, 1.0, 5.0, 400, 300, 8, peak_bytes=700, sync_s=0.5, proof_s=0.25),
    Turn(30.0, 20.0, 0.0, 10.0, 1000, 1000, 8, peak_bytes=900, sync_s=2.0, proof_s=1.0),
    Turn(12.0, 5.0, 1.0, 6.0, 600, 600, 8, peak_bytes=800, sync_s=1.0, proof_s=0.5),
]


def test_a_row_has_the_medians_and_the_highest_peak() -> None:
    assert row_of("a", TURNS) == {
        "name": "a",
        "step_s": 12.0,
        "generate_s": 5.0,
        "reward_s": 1.0,
        "train_s": 6.0,
        "sync_s": 1.0,
        "proof_s": 0.5,
        "peak_bytes": 900,
        "generated_tokens_per_s": 100.0,  # of 100, 50, 120
        "trained_tokens_per_s": 100.0,  # of 60, 100, 100
        "generated_tokens": 600,
        "completions": 8,
        "step_s_per_1000_tokens": 25.0,  # of 25, 30, 20
    }


def test_of_two_turns_the_median_is_their_mean() -> None:
    row = row_of("a", TURNS[:2])
    assert row["step_s"] == 20.0
    assert row["generated_tokens"] == 700


def test_ratios_say_how_much_longer_and_how_much_less_memory() -> None:
    ours = row_of("roost", [Turn(2.0, 1.0, 0.0, 1.0, 100, 100, 4, peak_bytes=300)])
    theirs = row_of("trl", [Turn(9.0, 4.0, 0.0, 5.0, 300, 300, 4, peak_bytes=600)])

    ratios = ratios_of([ours, theirs], ours)

    # 9 s against 2 s; 30 s against 20 s for a thousand tokens; 300 bytes of 600.
    assert ratios == {"trl": {"step": 4.5, "step_per_token": 1.5, "peak": 0.5}}


def test_a_turn_travels() -> None:
    assert Turn.parse(TURNS[0].as_dict()) == TURNS[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_s", None),
        ("step_s", "1.0"),
        ("train_s", -0.1),
        ("generate_s", float("nan")),
        ("peak_bytes", True),
    ],
)
def test_what_is_no_amount_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Turn.parse({**TURNS[0].as_dict(), field: value})
