"""Memory that libraries keep beyond what tensors hold, on a CPU.

Two things make the process of a run grow with its steps. Tensors of a few megabytes come from the
heap, and steps of ever other lengths leave holes in it: glibc gives back only what is free at its
end, and ``trim`` gives back the rest after each phase. And decode batches and packs have ever other
widths, for each of which oneDNN compiles its products anew: about 0.7 MB each, of which oneDNN
keeps 1,024 and torch as many again. 599 widths of one bfloat16 product leave 240 MiB or more behind
when trimmed, and 40 MiB where they are bounded (``tests/run/test_heap.py``).
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


def bound_primitives() -> None:
    """Have oneDNN and torch keep few compiled products, unless the environment says how many.

    They look at the first product, so this comes before any.
    """
    for variable in _CAPACITIES:
        os.environ.setdefault(variable, str(PRIMITIVES))


def trim() -> None:
    """Give freed pages back to the system; where the C library cannot (not glibc), do nothing."""
    call = _malloc_trim()
    if call is not None:
        call(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    # malloc_trim(3) is glibc's own; musl has none.
    function: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return function
