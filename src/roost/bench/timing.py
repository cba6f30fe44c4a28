"""Timing several things side by side in one process, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch


def alternate(subjects: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each subject; one untimed round first, then all in turns.

    In turns, so that what disturbs the machine for a while disturbs all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(rounds + 1):
        for name, subject in subjects.items():
            start = time.perf_counter()
            subject()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}
