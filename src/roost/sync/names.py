"""Which tensor of the trainer becomes which tensor of the engine, and which part of it.

Engines fuse: queries, keys and values become one matrix, gate and up another. Engines with tensor
parallelism divide: each of their shards holds a piece of a matrix, named ``NAME/SHARD``. The map is
made once, before training starts, and checked both ways: each tensor of the trainer goes somewhere,
all of it, and each of the engine comes from somewhere, with the right shape and dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roost.errors import EngineError

_LISTED = 6
"""Problems that an error names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a shard holds of a tensor: so many rows (``dim`` 0) or columns (1) from ``start`` on."""

    dim: int
    start: int
    size: int

    @property
    def end(self) -> int:
        """The first row or column behind it."""
        return self.start + self.size

    def of(self, tensor: Tensor) -> Tensor:
        """That piece."""
        return tensor.narrow(self.dim, self.start, self.size)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a tensor looks like."""

    shape: tuple[int, ...]
    """Without padding; of a shard, its own."""
    dtype: torch.dtype
    padding: int = 0
    """Rows of zeros that the engine adds after them."""
    tied_to: str | None = None
    """The tensor whose memory it shares, where that is written and not this one."""
    pieces: tuple[Piece, ...] = ()
    """Of each tensor that it is made of, what this shard holds; empty where it holds all."""


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
        parts = [tensors[name].detach() for name in self.parts]
        if self.info.pieces:
            parts = [p.of(part) for p, part in zip(self.info.pieces, parts, strict=True)]
        parts = [part.to(self.info.dtype) for part in parts]
        if self.info.padding:
            parts.append(parts[0].new_zeros(self.info.padding, *parts[0].shape[1:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class NameMap:
    """Targets by the engine's names.

    Args:
        trainer: Tensors of the trainer, by the names that checkpoints use.
        engine: Tensors of the engine, of all its shards.
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
        if not problems:
            problems = list(_gaps(trainer, self.targets.values()))
        if problems:
            raise EngineError(_listed(problems))
        self.sources = [name for name, info in trainer.items() if info.tied_to is None]
        """Tensors of the trainer that are sent, each once."""
        self.written = {name for name, info in engine.items() if info.tied_to is None}
        """Tensors of the engine that a sync must write."""

    def only(self, held: Collection[str]) -> NameMap:
        """The map of some tensors of the engine: those that this process holds."""
        mine = copy.copy(self)
        mine.targets = {name: t for name, t in self.targets.items() if name in held}
        mine.sources = list(self.sources)
        mine.written = self.written & set(held)
        return mine


def shard_name(name: str, shard: int) -> str:
    """The name of a shard's tensor.

    >>> shard_name("lm_head.weight", 1), split_shard("lm_head.weight/1"), split_shard("a.b")
    ('lm_head.weight/1', ('lm_head.weight', '/1'), ('a.b', ''))
    """
    return f"{name}/{shard}"


def split_shard(name: str) -> tuple[str, str]:
    """A name without its shard, and the shard's ending; empty where the engine is not divided."""
    plain, mark, shard = name.partition("/")
    return plain, mark + shard


def part_names(name: str, fused: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Names of the trainer's tensors that make up an engine's.

    >>> list(part_names("layers.0.qkv.weight", {"qkv": ["q", "k"]}))
    ['layers.0.q.weight', 'layers.0.k.weight']
    """
    name, _ = split_shard(name)
    owner, _, kind = name.rpartition(".")
    before, dot, module = owner.rpartition(".")
    for part in fused.get(module, [module]):
        yield f"{before}{dot}{part}.{kind}" if owner else name


def _mismatch(name: str, info: TensorInfo, parts: Sequence[TensorInfo]) -> Iterator[str]:
    shapes = [part.shape for part in parts]
    if info.pieces:
        if len(info.pieces) != len(parts):
            yield f"the engine divides {name} in {len(info.pieces)}, the model's has {len(parts)}"
            return
        shapes = [_shape_of(p, part) for p, part in zip(info.pieces, shapes, strict=True)]
    shape = (sum(each[0] for each in shapes), *shapes[0][1:])
    if shape != info.shape or any(each[1:] != shape[1:] for each in shapes):
        yield f"the engine's {name} has shape {info.shape}, the model's {shape}"
    dtypes = {part.dtype for part in parts}
    if dtypes != {info.dtype}:
        yield f"the engine's {name} is {info.dtype}, the model's {', '.join(map(str, dtypes))}"


def _shape_of(piece: Piece, shape: tuple[int, ...]) -> tuple[int, ...]:
    size = min(piece.size, shape[piece.dim] - piece.start)
    return (*shape[: piece.dim], size, *shape[piece.dim + 1 :])


def _gaps(trainer: Mapping[str, TensorInfo], targets: Collection[Target]) -> Iterator[str]:
    """What of the trainer's tensors no shard holds."""
    held: dict[str, list[Piece]] = {}
    for target in targets:
        for part, piece in zip(target.parts, target.info.pieces, strict=False):
            held.setdefault(part, []).append(piece)
    for name, pieces in held.items():
        dim, reached = pieces[0].dim, 0
        for piece in sorted(pieces, key=lambda piece: piece.start):
            if piece.start > reached:
                break
            reached = max(reached, piece.end)
        whole = trainer[name].shape[dim]
        if reached != whole or any(piece.dim != dim for piece in pieces):
            what = ("rows", "columns")[dim]
            yield f"no shard of the engine holds all {what} from {reached} on of the model's {name}"


def _listed(problems: Sequence[str]) -> str:
    shown = "\n".join(f"  - {problem}" for problem in problems[:_LISTED])
    more = f"\n  - and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    return (
        f"the engine's weights do not match the model's, so they cannot be kept in sync:\n{shown}"
        f"{more}\nSet rollout.engine = 'embedded', which samples from the model itself."
    )
