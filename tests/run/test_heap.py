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
    monkeypatch.setattr(heap, "_glibc", lambda name: None)
    heap.trim()


GROWTH = """
import psutil, torch
from roost.run import heap
if {bounded}:
    heap.set_up()
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
    return in_process(GROWTH, bounded=bounded)


def in_process(program: str, *, bounded: bool) -> int:
    """The number that a program prints in a process of its own."""
    ours = ("MALLOC_", "ONEDNN_", "LRU_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", program.format(bounded=bounded)],
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


PAGES = """
import resource, torch
from roost.run import heap
if {bounded}:
    heap.set_up()
hidden = torch.randn(2048, 576, dtype=torch.bfloat16)
weight = torch.ones(576, dtype=torch.bfloat16)

def norm():
    wide = hidden.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True))).bfloat16()

with torch.inference_mode():
    norm()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        norm()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="only glibc can be told to keep pages",
)
def test_pages_are_kept_between_tensors() -> None:
    """A norm's three float32 tensors are 3,456 pages, which are cleared once rather than 50 times.

    Left to itself glibc may be lucky too, so the bound is one of its own: 10 % of all 50.
    """
    assert in_process(PAGES, bounded=True) < 0.1 * 50 * 3456


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    heap.set_up()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
