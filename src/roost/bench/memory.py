"""The most memory that a contender has held."""

from __future__ import annotations

import psutil
import torch

from roost.run.ledger import peak_bytes, resident_peak


class PeakMemory:
    """The most bytes held so far by this process and those it has started.

    On a GPU, what torch's allocator reserved there. On a CPU, the sum of each process's highest
    resident memory: an upper bound where they peak at different times, and the same for all.

    Args:
        device: Where the model is.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._most = 0
        self._others = 0

    def note(self, bytes_seen: float = 0) -> int:
        """Look again; returns the most so far.

        Args:
            bytes_seen: A peak of this process that was measured elsewhere. Roost's ledger begins a
                new measurement with each phase, so what the system says covers the last one only.
        """
        self._most = max(self._most, int(bytes_seen), peak_bytes(self._device))
        if self._device.type == "cpu":
            self._others = max(self._others, _children_bytes())
        return self._most + self._others


def _children_bytes() -> int:
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            total += resident_peak(child.pid)
        except psutil.NoSuchProcess:
            continue  # It ended between the two looks.
    return total
