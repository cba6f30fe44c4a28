"""Curves as text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

_BARS = " ▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], width: int = 64, height: int = 4) -> str:
    """A curve of block characters, ``height`` lines high, averaged down to ``width`` columns.

    >>> print(curve([0.0, 1.0], height=1))
     █
    """
    columns = _resample(values, width)
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    eighths = [round((value - low) / span * height * 8) for value in columns]
    lines = []
    for row in range(height - 1, -1, -1):
        lines.append("".join(_BARS[min(8, max(0, level - row * 8))] for level in eighths))
    return "\n".join(lines)


def _resample(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [round(i * count / width) for i in range(width + 1)]
    return [fmean(values[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
