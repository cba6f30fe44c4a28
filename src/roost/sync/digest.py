"""Digests of tensors: equal bits give equal digests, one changed value gives another.

They guard against mistakes, not against an attacker, so they are fast rather than cryptographic:
one pass of integer arithmetic where the tensor lies, on a GPU or a CPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

ZEROS = "0" * 16
"""The digest of a tensor of zeros, whatever its shape."""
_CHUNK = 1 << 18
"""Words hashed at a time: what is computed stays in a CPU's cache."""
_MULTIPLIER = -7046029254386353131
"""2^64 divided by the golden ratio, as a signed word (Knuth, TAOCP 3, 6.4): spreads positions."""


def tensor_digest(tensor: Tensor) -> str:
    """16 hexadecimal digits that depend on each value, its place, and the dtype's width.

    ``sum(word_i * odd_i) mod 2^64`` over the 32-bit words of the values, with an odd factor for
    each place. A change of one word, by less than 2^32, times an odd number is never 0 modulo
    2^64: it always shows. -0.0 counts as 0.0, which compare equal.

    >>> tensor_digest(torch.tensor([1.0, 2.0])) == tensor_digest(torch.tensor([2.0, 1.0]))
    False
    """
    words = _words(tensor.detach())
    factors = _factors(tensor.device)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for index, start in enumerate(range(0, words.numel(), _CHUNK)):
        part = words[start : start + _CHUNK].to(torch.int64)
        # Odd times odd is odd: each place keeps a factor of its own.
        total += part.mul_(factors[: len(part)]).sum() * _odd(index)
    return f"{int(total) & (2**64 - 1):016x}"


def combined_digest(digests: Mapping[str, str]) -> str:
    """One digest of many named tensors, whatever their order."""
    whole = hashlib.sha256()
    for name in sorted(digests):
        whole.update(f"{name}={digests[name]}\n".encode())
    return whole.hexdigest()[:16]


@cache
def _factors(device: torch.device) -> Tensor:
    return (torch.arange(_CHUNK, device=device) * _MULTIPLIER) | 1


def _odd(index: int) -> int:
    word = (index * _MULTIPLIER | 1) & (2**64 - 1)
    return word - 2**64 if word >= 2**63 else word


def _words(tensor: Tensor) -> Tensor:
    """The values' bits as flat 32-bit integers; 16-bit values two to a word."""
    flat = (tensor + 0.0 if tensor.is_floating_point() else tensor).contiguous().view(-1)
    data = flat.view(torch.uint8)
    if data.numel() % 4:
        data = torch.nn.functional.pad(data, (0, 4 - data.numel() % 4))
    return data.view(torch.int32)
