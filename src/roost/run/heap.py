"""Memory that the C library keeps after it was freed.

On a CPU, tensors of a few megabytes come from the heap, and steps of ever other lengths leave holes
in it: glibc gives back only what is free at its end. Over a hundred steps of a small model the
process came to hold a gigabyte more than any phase used. Trimmed after each phase, what one phase
frees is there for the next, or for another program.
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
