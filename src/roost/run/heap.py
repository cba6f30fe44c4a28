"""How a CPU run takes memory from the system and gives it back.

Left to itself, glibc takes pages and gives them back again with each tensor of a layer. The system
clears every page anew, for which a training step took 15 % more CPU time (benchmarks/notes.md). So
``set_up`` has it keep pages, and ``trim`` gives back what is free at the end of each phase.

Decode batches and packs have ever other widths, for each of which oneDNN compiles its products
anew: about 0.7 MB each, of which oneDNN keeps 1,024 and torch as many again. 599 widths of one
bfloat16 product leave 240 MiB or more behind when trimmed, and 40 MiB where ``set_up`` bounds them
(``tests/run/test_heap.py``).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache

PRIMITIVES = 64
"""Compiled products to keep: those of one pack's forward and backward are about 30, those of a
decode step 6."""
_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Of oneDNN's cache and of the one that torch has before it (ideep, ``lru_cache.hpp``)."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""mallopt(3)."""
_KEEP_FREE_BYTES = 2**31 - 1
_MAP_APART_BYTES = 32 * 2**20
"""The most that glibc allows; tensors from this size are mapped apart, and cleared, each time."""


def set_up() -> None:
    """Keep pages between tensors, and few compiled products; what the environment says stays.

    oneDNN and torch look at the first product, so this comes before any.
    """
    for variable in _CAPACITIES:
        os.environ.setdefault(variable, str(PRIMITIVES))
    mallopt = _glibc("mallopt")
    if mallopt is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt(_M_TRIM_THRESHOLD, _KEEP_FREE_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAP_APART_BYTES)


def trim() -> None:
    """Give free pages back to the system; where the C library cannot (not glibc), do nothing."""
    malloc_trim = _glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


@cache
def _glibc(name: str) -> Callable[..., int] | None:
    """One of glibc's own functions; None with another C library."""
    if sys.platform != "linux":
        return None
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return function
