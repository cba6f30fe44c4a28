from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.rewards.numbers import last_number, to_fraction


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("12+7=19", 19),
        ("the answer is -5.", -5),
        ("5-9", 9),
        ("5 - 9", 9),
        ("x=-4", -4),
        ("(-3)", -3),
        ("1,234,567", 1234567),
        ("3, 4", 4),
        ("0.5", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("19.", 19),
        ("$12.50 a piece", Fraction(25, 2)),
        ("+7", 7),
        ("3/0", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number(text: str, value: Fraction | int | None) -> None:
    assert last_number(text) == value


@given(st.integers(-(10**12), 10**12), st.text("abc =.", max_size=5))
def test_any_whole_number_is_read(number: int, before: str) -> None:
    assert last_number(f"{before} {number}") == number
    assert last_number(f"{before} {number:,}") == number


@given(st.text(max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    last_number(text)
    to_fraction(text)
