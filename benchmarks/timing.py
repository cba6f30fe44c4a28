"""Timing several things side by side in one process, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def alternate(subjects: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each subject; one untimed round first, then all in turns.

    In turns, so that what disturbs the machine for a while disturbs all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(rounds + 1):
        for name, subject in subjects.items():
            start = time.perf_counter()
            subject()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def table(rows: list[dict[str, object]]) -> str:
    """Rows of the same keys as a Markdown table.

    >>> print(table([{"what": "a", "s": 1.0}]))
    | what | s |
    |---|---|
    | a | 1.00 |
    """
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        cells = [f"{row[n]:.2f}" if isinstance(row[n], float) else str(row[n]) for n in names]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
