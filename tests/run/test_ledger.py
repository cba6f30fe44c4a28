"""The ledger against memory that the tests take and give back themselves."""

from __future__ import annotations

import time

import psutil
import pytest
import torch

from roost.run.heap import trim
from roost.run.ledger import Ledger, available_bytes, process_bytes, reset_peak

CPU = torch.device("cpu")
MB = 1_000_000


def take(size: int) -> None:
    """Hold so many bytes of resident memory, and give them back."""
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])


def test_a_peak_is_seen_after_it_is_over() -> None:
    ledger = Ledger(CPU)
    trim()  # what earlier tests freed would be taken in place of new memory
    before = psutil.Process().memory_info().rss
    with ledger.phase("generate"):
        take(200 * MB)
    assert psutil.Process().memory_info().rss < before + 100 * MB, "it was given back"
    peak = ledger.phases["generate"].peak_bytes
    assert before + 190 * MB < peak < before + 260 * MB


def test_one_phases_peak_is_not_the_nexts() -> None:
    ledger = Ledger(CPU)
    with ledger.phase("evaluate"):
        pass  # what earlier tests freed goes back to the system at its end
    with ledger.phase("generate"):
        take(200 * MB)
    with ledger.phase("train"):
        take(50 * MB)
    generate, train = (ledger.phases[name].peak_bytes for name in ("generate", "train"))
    assert 120 * MB < generate - train < 180 * MB


def test_the_run_keeps_the_most_and_a_step_its_own() -> None:
    ledger = Ledger(CPU)
    with ledger.phase("train"):
        take(150 * MB)
    ledger.begin_step()
    with ledger.phase("train"):
        take(20 * MB)
    whole, last = ledger.phases["train"], ledger.last["train"]
    assert whole.peak_bytes - last.peak_bytes > 100 * MB
    assert (whole.times, last.times) == (2, 1)
    assert ledger.step_metrics()["memory/train_peak_bytes"] == last.peak_bytes


def test_seconds_add_up() -> None:
    ledger = Ledger(CPU)
    start = time.perf_counter()
    for _ in range(3):
        with ledger.phase("reward"):
            time.sleep(0.05)
    elapsed = time.perf_counter() - start
    assert 0.15 <= ledger.phases["reward"].seconds <= elapsed
    assert ledger.step_metrics()["time/reward_s"] == ledger.phases["reward"].seconds


def test_a_step_has_only_its_own_phases() -> None:
    ledger = Ledger(CPU)
    with ledger.phase("generate"):
        pass
    ledger.begin_step()
    with ledger.phase("train"):
        pass
    assert set(ledger.step_metrics()) == {"time/train_s", "memory/train_peak_bytes"}
    assert set(ledger.phases) == {"generate", "train"}


def test_a_phase_that_fails_is_measured_too() -> None:
    ledger = Ledger(CPU)
    with pytest.raises(MemoryError), ledger.phase("train"):
        raise MemoryError
    assert ledger.phases["train"].times == 1
    assert ledger.phases["train"].peak_bytes > 0


def test_on_a_gpu_a_phase_begins_without_what_the_one_before_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserved, peak = [300], [300]

    def empty() -> None:
        reserved[0] = 100

    def reset(device: torch.device) -> None:
        peak[0] = reserved[0]  # the peak is never below what is held

    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: peak[0])
    ledger = Ledger(torch.device("cuda"))
    with ledger.phase("train"):
        pass
    assert ledger.phases["train"].peak_bytes == 100


def test_what_is_free_and_what_is_held() -> None:
    assert 0 < available_bytes(CPU) <= psutil.virtual_memory().total
    reset_peak(CPU)
    held = process_bytes(CPU)
    block = bytearray(100 * MB)
    block[::4096] = b"x" * len(block[::4096])
    assert 90 * MB < process_bytes(CPU) - held < 120 * MB
