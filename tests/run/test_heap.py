from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import psutil
import pytest
import torch

from roost.run import heap

MIB = 2**20


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="only glibc keeps freed pages and can give them back",
)
def test_holes_in_the_heap_go_back_to_the_system() -> None:
    torch.ones(30 * MIB, dtype=torch.uint8)  # freed, it raises the size that glibc maps apart
    tensors = [torch.ones(MIB, dtype=torch.uint8) for _ in range(400)]
    kept = tensors[::20]
    del tensors
    before = psutil.Process().memory_info().rss
    heap.trim()
    assert before - psutil.Process().memory_info().rss > 200 * MIB
    assert all(bool((tensor == 1).all()) for tensor in kept)


def test_a_c_library_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_malloc_trim", lambda: None)
    heap.trim()


GROWTH = """
import psutil, torch
from roost.run import heap
if {bounded}:
    heap.bound_primitives()
weight = torch.randn(1536, 576, dtype=torch.bfloat16)
rows = torch.randn(600, 576, dtype=torch.bfloat16)
torch.nn.functional.linear(rows, weight)
before = psutil.Process().memory_info().rss
for count in range(1, 600):
    torch.nn.functional.linear(rows[:count], weight)
heap.trim()
print(psutil.Process().memory_info().rss - before)
"""


def grown(*, bounded: bool) -> int:
    """Bytes that 599 widths of one product leave behind."""
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_CACHE_CAPACITY")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", GROWTH.format(bounded=bounded)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(done.stdout)


def test_products_of_many_widths_leave_little_behind() -> None:
    """Where oneDNN compiles nothing (a processor without 16-bit products), nothing grows."""
    assert grown(bounded=True) < max(20 * MIB, 0.4 * grown(bounded=False))


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    heap.bound_primitives()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
