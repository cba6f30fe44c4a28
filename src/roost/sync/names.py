"""Which tensor of the trainer becomes which tensor of the engine, and which part of it.

Engines fuse: queries, keys and values become one matrix, gate and up another. The map is made once,
before training starts, and checked both ways: each tensor of the trainer goes somewhere, each of
the engine comes from somewhere, with the right shape and dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roost.errors import EngineError

_LISTED = 6
"""Problems that an error names; the others are counted."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a tensor looks like."""

    shape: tuple[int, ...]
    """Without padding."""
    dtype: torch.dtype
    padding: int = 0
    """Rows of zeros that the engine adds after them."""
    tied_to: str | None = None
    """The tensor whose memory it shares, where that is written and not this one."""


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor of the engine and what it is made of."""

    name: str
    info: TensorInfo
    parts: tuple[str, ...]
    """Tensors of the trainer, joined along their first dimension."""

    def expected(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """What the engine should hold.

        Args:
            tensors: The trainer's, by name.
        """
        parts = [tensors[name].detach().to(self.info.dtype) for name in self.parts]
        if self.info.padding:
            parts.append(parts[0].new_zeros(self.info.padding, *parts[0].shape[1:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class NameMap:
    """Targets by the engine's names.

    Args:
        trainer: Tensors of the trainer, by the names that checkpoints use.
        engine: Tensors of the engine.
        fused: By the last but one word of an engine's name, the words that it stands for, in
            order: ``{"qkv_proj": ["q_proj", "k_proj", "v_proj"]}``.

    Raises:
        EngineError: the two do not match; the difference is printed.
    """

    def __init__(
        self,
        trainer: Mapping[str, TensorInfo],
        engine: Mapping[str, TensorInfo],
        fused: Mapping[str, Sequence[str]],
    ) -> None:
        self.targets: dict[str, Target] = {}
        problems: list[str] = []
        used: set[str] = set()
        for name, info in engine.items():
            parts = tuple(part_names(name, fused))
            used.update(parts)
            missing = [part for part in parts if part not in trainer]
            if missing:
                problems.append(f"the engine's {name} needs {', '.join(missing)}, not in the model")
                continue
            problems += _mismatch(name, info, [trainer[part] for part in parts])
            self.targets[name] = Target(name, info, parts)
        unused = [name for name in trainer if name not in used]
        problems += [f"the model's {name} is in no tensor of the engine" for name in unused]
        if problems:
            raise EngineError(_listed(problems))
        self.sources = [name for name, info in trainer.items() if info.tied_to is None]
        """Tensors of the trainer that are sent, each once."""
        self.written = {name for name, info in engine.items() if info.tied_to is None}
        """Tensors of the engine that a sync must write."""


def part_names(name: str, fused: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Names of the trainer's tensors that make up an engine's.

    >>> list(part_names("layers.0.qkv.weight", {"qkv": ["q", "k"]}))
    ['layers.0.q.weight', 'layers.0.k.weight']
    """
    owner, _, kind = name.rpartition(".")
    before, dot, module = owner.rpartition(".")
    for part in fused.get(module, [module]):
        yield f"{before}{dot}{part}.{kind}" if owner else name


def _mismatch(name: str, info: TensorInfo, parts: Sequence[TensorInfo]) -> Iterator[str]:
    rows = sum(part.shape[0] for part in parts)
    shape = (rows, *parts[0].shape[1:])
    if shape != info.shape or any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        yield f"the engine's {name} has shape {info.shape}, the model's {shape}"
    dtypes = {part.dtype for part in parts}
    if dtypes != {info.dtype}:
        yield f"the engine's {name} is {info.dtype}, the model's {', '.join(map(str, dtypes))}"


def _listed(problems: Sequence[str]) -> str:
    shown = "\n".join(f"  - {problem}" for problem in problems[:_LISTED])
    more = f"\n  - and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    return (
        f"the engine's weights do not match the model's, so they cannot be kept in sync:\n{shown}"
        f"{more}\nSet rollout.engine = 'embedded', which samples from the model itself."
    )
