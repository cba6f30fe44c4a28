"""Curves as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

BLOCKS = " ▁▂▃▄▅▆▇█"
"""Eighths of a character's height."""
ASCII = "  .....##"
"""The same for terminals and pipes without Unicode."""


def bars_for(encoding: str | None) -> str:
    """Characters for curves that an encoding has.

    >>> bars_for("latin-1") == ASCII
    True
    """
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def curve(values: Sequence[float], width: int = 64, height: int = 4, bars: str = BLOCKS) -> str:
    """A curve of block characters, ``height`` lines high, averaged down to ``width`` columns.

    >>> print(curve([0.0, 1.0], height=1))
     █
    """
    columns = _resample(values, width)
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    eighths = [round((value - low) / span * height * 8) for value in columns]
    rows = range(height - 1, -1, -1)
    levels = [[min(8, max(0, level - row * 8)) for level in eighths] for row in rows]
    return "\n".join("".join(bars[level] for level in line) for line in levels)


def _resample(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [round(i * count / width) for i in range(width + 1)]
    return [fmean(values[a:b]) for a, b in pairwise(edges)]
