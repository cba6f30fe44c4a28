"""What client and server say to each other: a message is JSON, and bytes behind it.

``8 bytes`` length of the JSON, little-endian; the JSON, an object; the bytes.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.port import Finished
from roost.errors import EngineError
from roost.sync.names import Piece, TensorInfo
from roost.sync.transports import DTYPES

TOKEN_HEADER = "Authorization"
SESSION_HEADER = "X-Roost-Session"
"""Also keeps web pages out: a browser asks before it sends a header of this kind elsewhere."""


def encode(message: dict[str, Any], data: bytes | bytearray = b"") -> bytes:
    """One message.

    >>> decode(encode({"a": 1}, b"xy"))
    ({'a': 1}, bytearray(b'xy'))
    """
    head = json.dumps(message).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, data])


def decode(body: bytes) -> tuple[dict[str, Any], bytearray]:
    """Undo ``encode``.

    Raises:
        EngineError: it is no message.
    """
    end = 8 + int.from_bytes(body[:8], "little")
    try:
        message = json.loads(body[8:end]) if end <= len(body) else None
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise EngineError("what arrived is no message of Roost, or is cut short")
    return message, bytearray(memoryview(body)[end:])


def headers(session: str, token: str | None) -> dict[str, str]:
    """What goes with each call.

    >>> headers("s", None)
    {'X-Roost-Session': 's'}
    """
    known = {} if token is None else {TOKEN_HEADER: f"Bearer {token}"}
    return {SESSION_HEADER: session, **known}


def sampling_out(sampling: SamplingParams) -> dict[str, Any]:
    """Sampling parameters as JSON."""
    return {
        "max_completion_tokens": sampling.max_completion_tokens,
        "temperature": sampling.temperature,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(sampling.stop_token_ids),
    }


def sampling_in(given: dict[str, Any]) -> SamplingParams:
    """Undo ``sampling_out``."""
    return SamplingParams(
        max_completion_tokens=int(given["max_completion_tokens"]),
        temperature=float(given["temperature"]),
        stop=tuple(given["stop"]),
        stop_token_ids=frozenset(given["stop_token_ids"]),
    )


def finished_out(finished: Finished) -> dict[str, Any]:
    """A completion as JSON."""
    return {name: getattr(finished, name) for name in Finished.__slots__}


def finished_in(given: dict[str, Any]) -> Finished:
    """Undo ``finished_out``."""
    return Finished(**given)


def infos_out(tensors: dict[str, TensorInfo]) -> dict[str, list[Any]]:
    """Descriptions of tensors as JSON."""
    return {
        name: [
            list(i.shape),
            str(i.dtype).removeprefix("torch."),
            i.padding,
            i.tied_to,
            [[piece.dim, piece.start, piece.size] for piece in i.pieces],
        ]
        for name, i in tensors.items()
    }


def infos_in(given: dict[str, list[Any]]) -> dict[str, TensorInfo]:
    """Undo ``infos_out``."""
    return {
        name: TensorInfo(
            tuple(shape), _dtype(dtype), padding, tied, tuple(Piece(*piece) for piece in pieces)
        )
        for name, (shape, dtype, padding, tied, pieces) in given.items()
    }


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise EngineError(f"the server holds tensors of dtype {name}, which Roost does not send")
    return DTYPES[name]
