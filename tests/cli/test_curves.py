from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roost.cli.curves import ASCII, BLOCKS, bars_for, curve


def test_a_rise_rises() -> None:
    assert curve([0, 1, 2, 3, 4, 5, 6, 7, 8], height=1) == " ▁▂▃▄▅▆▇█"


def test_a_terminal_without_unicode_gets_letters() -> None:
    assert bars_for("utf-8") == BLOCKS
    assert bars_for("ascii") == bars_for(None) == bars_for("no-such-code") == ASCII
    assert len(ASCII) == len(BLOCKS)
    assert curve([0, 2, 8], height=1, bars=ASCII) == " .#"


def test_a_flat_curve_is_flat() -> None:
    assert curve([3.0, 3.0], height=2) == "  \n  "


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300),
    st.integers(1, 80),
    st.integers(1, 6),
)
def test_any_curve_has_its_size(values: list[float], width: int, height: int) -> None:
    lines = curve(values, width, height).split("\n")
    assert len(lines) == height
    assert {len(line) for line in lines} == {min(width, len(values))}
