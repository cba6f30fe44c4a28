from __future__ import annotations

import ctypes
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
