"""Memory that the C library keeps after it was freed.

On a CPU, tensors of a few megabytes come from the heap, and steps of ever other lengths leave holes
in it: glibc gives back only what is free at its end. Trimming after each phase gives back the rest.

It is a part of what a CPU run holds beyond its plan, not all: in 14 steps of
``recipes/smollm2-arithmetic.toml`` (``memory/generate_peak_bytes``) the process grew to 1.79 GiB
with it and to 2.03 GiB without. With ``ONEDNN_PRIMITIVE_CACHE_CAPACITY=32`` besides it was 1.57
GiB, so some of the rest is oneDNN's cache of primitives, one for each shape of product.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


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
