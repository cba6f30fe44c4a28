"""A bucket of tensors as bytes, and the two ways they travel to a server: a file in memory that
both processes see, or the request itself.

Nothing is unpickled: a manifest says name, dtype, shape, place and digest of each tensor, and what
does not agree with it is refused. The bytes are bounded by the bucket (``sync.buckets``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roost.errors import EngineError
from roost.sync.digest import tensor_digest

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
}
"""By the name that a manifest uses."""
_FILE_NAME = re.compile(r"bucket-[0-9a-f]{16}")


def pack(tensors: Sequence[tuple[str, Tensor]]) -> tuple[list[dict[str, Any]], bytearray]:
    """The manifest of a bucket and its bytes, one tensor after the other.

    >>> manifest, data = pack([("a", torch.zeros(2, 3))])
    >>> manifest[0]["shape"], len(data)
    ([2, 3], 24)
    """
    manifest, data = [], bytearray(sum(tensor.nbytes for _, tensor in tensors))
    start = 0
    for name, tensor in tensors:
        held = tensor.detach().contiguous().cpu()
        manifest.append(
            {
                "name": name,
                "dtype": str(held.dtype).removeprefix("torch."),
                "shape": list(held.shape),
                "start": start,
                "digest": tensor_digest(held),
            }
        )
        if held.nbytes:
            target = memoryview(data)[start : start + held.nbytes]
            target[:] = held.view(-1).view(torch.uint8).numpy().data
        start += held.nbytes
    return manifest, data


def unpack(manifest: Sequence[dict[str, Any]], data: bytearray) -> list[tuple[str, Tensor]]:
    """The tensors of a bucket; they share the memory of ``data``.

    Raises:
        EngineError: the manifest does not describe these bytes, or a digest differs.
    """
    tensors, end = [], 0
    for entry in manifest:
        name, shape = str(entry["name"]), [int(size) for size in entry["shape"]]
        dtype = DTYPES.get(str(entry["dtype"]))
        if dtype is None or any(size < 0 for size in shape) or entry["start"] != end:
            raise EngineError(f"the manifest of {name} makes no sense: {entry}. Nothing was taken.")
        count = math.prod(shape)
        if end + count * dtype.itemsize > len(data):
            raise EngineError(
                f"{name} arrived in part: {len(data) - end} of {count * dtype.itemsize} bytes."
            )
        flat = torch.empty(0, dtype=dtype)
        if count:
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=end)
        if tensor_digest(flat) != entry["digest"]:
            raise EngineError(f"{name} did not arrive as it was sent: its digest differs.")
        tensors.append((name, flat.view(shape)))
        end += count * dtype.itemsize
    if end != len(data):
        raise EngineError(f"a bucket has {len(data) - end} bytes that no tensor explains.")
    return tensors


def remove_buckets(folder: Path) -> None:
    """Remove what a trainer that was killed has left in a server's folder."""
    for file in folder.glob("bucket-*"):
        file.unlink(missing_ok=True)


def read_shared(folder: Path, name: str) -> bytearray:
    """The bytes of a bucket that was put into ``folder`` under a bare name.

    Raises:
        EngineError: the name is not of that kind, so it could lead elsewhere; or no such file.
    """
    if not _FILE_NAME.fullmatch(name):
        raise EngineError(f"{name!r}: not the name of a bucket")
    try:
        return bytearray((folder / name).read_bytes())
    except OSError as error:
        raise EngineError(f"the bucket {name} cannot be read: {error.strerror}") from error
