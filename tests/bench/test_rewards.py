from __future__ import annotations

import pytest

from roost.bench.rewards import answer_and_digits


def test_the_right_answer_and_the_share_of_digits() -> None:
    rewards = answer_and_digits(["12", "it is 12", "no", "", "7777"], ["12"] * 5)
    assert rewards == pytest.approx([2.0, 1.25, 0.0, 0.0, 1.0])
