"""CUDA graphs: the only module of the engine that talks to ``torch.cuda``.

A graph replays the kernels of a step without the Python between them. It reads and writes fixed
addresses, so it is recorded over tensors that stay, and it may not wait for the GPU: a step that
does is found out by rehearsing it, and is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

Work = Callable[[], Tensor]
"""A step: reads tensors that stay, and returns its result."""


class NotRecordable(Exception):
    """A step waits for the GPU in its middle; the message says where it was noticed."""


class Recorder(Protocol):
    """Makes a step replayable."""

    def rehearse(self, work: Work) -> Tensor:
        """Run a step once, as a recording will, so that all that is set up lazily is there.

        Raises:
            NotRecordable: it cannot be recorded.
        """
        ...

    def record(self, work: Work) -> Work:
        """Record a step that was rehearsed; the result replays it, and returns the same tensor."""
        ...


class CudaRecorder:
    """Owns a stream to record on and the memory that its graphs share.

    Graphs share their memory, which is safe as they replay one at a time and a result is read
    before the next replay. They and it live as long as the recorder.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = torch.cuda.graph_pool_handle()

    def rehearse(self, work: Work) -> Tensor:
        """See ``Recorder``."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), _waiting_forbidden():
            result = work()
        current.wait_stream(self._stream)
        result.record_stream(current)
        return result

    def record(self, work: Work) -> Work:
        """See ``Recorder``."""
        graph: Any = torch.cuda.CUDAGraph()
        # Calls of other threads are none of this recording's business.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            result = work()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


@contextmanager
def _waiting_forbidden() -> Iterator[None]:
    """Within it a call that waits for the GPU raises ``NotRecordable``."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise NotRecordable(str(error).splitlines()[0]) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


def on_device(values: list[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers from the host, without waiting for the device.

    Pinned memory is kept by torch until the copy out of it is done, so it need not be ours.
    """
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
