"""The reward of a benchmark, one function for all who take part."""

from __future__ import annotations

from collections.abc import Sequence

from roost.rewards.numbers import last_number, to_fraction

REFERENCE = f"{__name__}:answer_and_digits"


def answer_and_digits(completions: Sequence[str], answer: Sequence[str]) -> list[float]:
    """1 for the right answer, and the share of digits in the text.

    The share tells nearly all completions of a group apart. Where a whole group earns the same, its
    advantages are 0, and who sees that can leave its training out: nobody should win by that here.

    >>> answer_and_digits(["12", "say 7"], ["12", "12"])
    [2.0, 0.2]
    """
    return [
        float(last_number(text) == to_fraction(str(right))) + _digits(text)
        for text, right in zip(completions, answer, strict=True)
    ]


def _digits(text: str) -> float:
    return sum(c.isdigit() for c in text) / max(1, len(text))
