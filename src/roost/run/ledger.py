"""The ledger: peak bytes and seconds of each phase, as measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from roost.run.heap import trim


@dataclass(slots=True)
class PhaseRecord:
    """One phase over the run so far."""

    peak_bytes: int = 0
    seconds: float = 0.0
    times: int = 0


@dataclass(slots=True)
class Ledger:
    """Measures phases; one owner, the run.

    On a GPU, peak bytes are what the allocator held; on a CPU, the process's resident memory.
    """

    device: torch.device
    phases: dict[str, PhaseRecord] = field(default_factory=dict)
    last: dict[str, PhaseRecord] = field(default_factory=dict)
    """The same, of the current step alone."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what happens inside as one phase."""
        reset_peak(self.device)
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            peak = peak_bytes(self.device)
            self._add(self.phases, name, peak, seconds)
            self._add(self.last, name, peak, seconds)
            if self.device.type == "cpu":
                trim()

    def begin_step(self) -> None:
        """Forget the step before."""
        self.last.clear()

    def step_metrics(self) -> dict[str, float]:
        """``time/NAME_s`` and ``memory/NAME_peak_bytes`` of the current step."""
        metrics: dict[str, float] = {}
        for name, record in self.last.items():
            metrics[f"time/{name}_s"] = record.seconds
            metrics[f"memory/{name}_peak_bytes"] = record.peak_bytes
        return metrics

    @staticmethod
    def _add(table: dict[str, PhaseRecord], name: str, peak: int, seconds: float) -> None:
        record = table.setdefault(name, PhaseRecord())
        record.peak_bytes = max(record.peak_bytes, peak)
        record.seconds += seconds
        record.times += 1


def reset_peak(device: torch.device) -> None:
    """Start a new peak measurement."""
    if device.type == "cuda":
        # What the phase before used and gave back is held by torch's allocator still, and would
        # count as this one's.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")  # resets VmHWM: proc(5)


def peak_bytes(device: torch.device) -> int:
    """Most bytes held since ``reset_peak``; where the system cannot say, bytes held now."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return resident_peak(os.getpid())


def resident_peak(pid: int) -> int:
    """Most resident bytes of a process since its last ``reset_peak``; where the system cannot say,
    bytes held now.

    Raises:
        psutil.NoSuchProcess: there is no such process.
    """
    status = Path(f"/proc/{pid}/status")
    try:
        lines = status.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        lines = []  # Another system, or the process is gone, which psutil tells apart.
    for line in lines:
        if line.startswith("VmHWM:"):  # proc(5)
            return int(line.split()[1]) * 1024
    return int(psutil.Process(pid).memory_info().rss)


def available_bytes(device: torch.device) -> int:
    """Bytes that this process may still take on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    # Processes that torchrun started on this machine share its memory.
    return int(psutil.virtual_memory().available) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def process_bytes(device: torch.device) -> int:
    """Bytes that this process holds already: on a CPU its resident memory, on a GPU nothing yet."""
    return 0 if device.type == "cuda" else int(psutil.Process().memory_info().rss)
