"""Rows as Markdown, ready for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of the same keys as a Markdown table.

    >>> print(table([{"what": "a", "s": 1.0}]))
    | what | s |
    |---|---|
    | a | 1.00 |
    """
    names = list(rows[0])
    cells = [[_cell(row[name]) for name in names] for row in rows]
    lines = [" | ".join(names), "|".join(["---"] * len(names)), *(" | ".join(c) for c in cells)]
    head, rule, *body = lines
    return "\n".join([f"| {head} |", f"|{rule}|", *(f"| {line} |" for line in body)])


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def settings_lines(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each contender: what it ran with."""
    return [
        f"{name}: {', '.join(f'{key} {value}' for key, value in chosen.items())}"
        for name, chosen in settings.items()
    ]
