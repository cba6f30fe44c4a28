"""What the engine needs of vLLM, in Roost's words; ``adapter.VllmAdapter`` is the real one.

Tests drive the engine through another one that records what it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from roost.engines.protocol import SamplingParams
from roost.sync.names import TensorInfo

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Widths of the slot that an adapter is put into."""
BLOCK_TOKENS = {"cpu": 32, "cuda": 16}
"""Tokens of a cache block: the smallest that the device's attention takes."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """What an engine is started with."""

    model: str
    """A folder or hub id."""
    dtype: torch.dtype
    device: str
    """``cpu`` or ``cuda``."""
    cache_bytes: int
    max_tokens: int
    """Of one sequence, prompt and completion."""
    max_sequences: int
    seed: int
    lora_rank: int | None = None
    """None for no adapter."""
    revision: str | None = None
    tokenizer: str | None = None
    """Only where stop strings need one."""
    trust_remote_code: bool = False
    sleep_level: int = 0
    tensor_parallel: int = 1
    """Shards of the engine, each on a device of its own."""
    launched: bool = False
    """Whether this process is one of several that ``torchrun`` started, and holds one shard."""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to make."""

    token_ids: Sequence[int]
    seed: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A completion that was made."""

    request_id: str
    token_ids: list[int]
    logprobs: list[float]
    """Per token, under the distribution it was drawn from."""
    versions: list[str]
    """Per token, the label of the weights that sampled it."""
    stopped: bool
    """By a stop token or string, and not by its budget."""


class Port(Protocol):
    """One engine with weights of its own."""

    def tensors(self) -> dict[str, TensorInfo]:
        """Its parameters by checkpoint-like names, tied ones under each; of an engine with tensor
        parallelism those of the shards in its hands, as ``NAME/SHARD`` (``sync.names``)."""
        ...

    def fused(self) -> Mapping[str, Sequence[str]]:
        """Its fused layers and what they stand for, in order."""
        ...

    def digests(self, names: Collection[str]) -> dict[str, str]:
        """Digests of what it computes with, by some names of ``tensors``."""
        ...

    def adapter_digests(self) -> dict[str, tuple[str, str]]:
        """By wrapped layer and part, as in ``qkv_proj.0``, or ``qkv_proj.0/1`` in shard 1, the
        digests of the slot's A and B."""
        ...

    def start_update(self) -> None:
        """Open an update of all weights."""
        ...

    def send(self, tensors: list[tuple[str, Tensor]]) -> tuple[list[str], set[str]]:
        """Give it one bucket. Returns names received and names written."""
        ...

    def finish_update(self, version: str) -> None:
        """Close the update, label it, and forget what was cached under the old weights."""
        ...

    def load_adapter(self, folder: Path, version: str) -> None:
        """Replace the adapter in its one slot by a folder's, label it, forget what was cached."""
        ...

    def version(self) -> str:
        """The label of the weights it holds."""
        ...

    def sleep(self, level: int) -> None:
        """Drop the cache, and move weights to host memory (1) or drop them too (2)."""
        ...

    def wake(self, part: Literal["weights", "kv_cache"]) -> None:
        """Map a part again."""
        ...

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probability of each token but the first, at temperature 1."""
        ...

    def submit(self, requests: Sequence[Request], sampling: SamplingParams) -> list[str]:
        """Queue completions; returns an id for each.

        Raises:
            ValueError: a request is not possible, such as one that is too long.
        """
        ...

    def step(self) -> list[Finished]:
        """Decode one token of each running completion; returns those that are finished."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Give requests up, and wait until they are gone."""
        ...

    def close(self) -> None:
        """Release the engine."""
        ...


Through = Callable[[Port], Port]
"""Puts something around an engine, which is then used through it."""


def directly(port: Port) -> Port:
    """Nothing around it."""
    return port


def slot_rank(rank: int) -> int | None:
    """The narrowest slot that holds an adapter; None where there is none so wide.

    >>> slot_rank(9), slot_rank(513)
    (16, None)
    """
    return next((width for width in LORA_RANKS if width >= rank), None)
