"""What a GPU would do, written down: a recorder of steps, and kernels by their definitions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import varlen

from roost.engines.embedded.graphs import NotRecordable
from roost.engines.embedded.kernels import SlotQueries

Work = Callable[[], Tensor]
SIGNATURE = inspect.signature(varlen.varlen_attn)


class Tape:
    """A recorder that notes what it is asked, and replays as a graph does: into one tensor.

    Args:
        refuse: Raise at the rehearsal, as where a step waits for the GPU.
    """

    def __init__(self, *, refuse: bool = False) -> None:
        self.refuse = refuse
        self.rehearsed: list[Work] = []
        self.recorded: list[Work] = []
        self.replays = 0

    def rehearse(self, work: Work) -> Tensor:
        if self.refuse:
            raise NotRecordable("called a synchronizing CUDA operation")
        assert work not in self.rehearsed, "once is enough"
        self.rehearsed.append(work)
        return work()

    def record(self, work: Work) -> Work:
        assert work in self.rehearsed, "recorded without a rehearsal"
        assert work not in self.recorded, "recorded twice"
        self.recorded.append(work)
        result: list[Tensor] = []

        def replay() -> Tensor:
            self.replays += 1
            fresh = work()
            if not result:
                result.append(fresh)
            return result[0].copy_(fresh)

        return replay


class DefinedKernel:
    """A slot kernel in float64, one query at a time; refuses calls that a real one would not take.

    Args:
        wrong: Added to what it computes.
    """

    name = "kernel by definition"

    def __init__(self, wrong: float = 0.0) -> None:
        self.wrong = wrong
        self.calls = 0

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, which: SlotQueries, scale: float
    ) -> tuple[Tensor, Tensor]:
        self.calls += 1
        slots, capacity, heads, dim = key.shape
        assert key.is_contiguous()
        assert value.is_contiguous()
        assert query.is_contiguous()
        assert query.shape[1:] == (heads, dim), "as many heads as keys: grouped ones are queries"
        assert which.ends.dtype == which.lengths.dtype == torch.int32
        ends = which.ends.tolist()
        assert len(ends) == slots + 1
        assert (ends[0], ends[-1]) == (0, len(query)), "every query has a slot"
        assert max(b - a for a, b in pairwise(ends)) <= which.longest
        output = query.new_full((len(query), heads, dim), torch.nan)
        lse = query.new_full((len(query), heads), torch.nan, dtype=torch.float32)
        for slot, (start, end) in enumerate(pairwise(ends)):
            length = int(which.lengths[slot])
            assert 0 < length <= capacity
            keys, values = key[slot, :length].double(), value[slot, :length].double()
            scores = torch.einsum("qhd,khd->qhk", query[start:end].double(), keys) * scale
            attended = torch.einsum("qhk,khd->qhd", scores.softmax(-1), values)
            output[start:end] = (attended + self.wrong).to(output.dtype)
            lse[start:end] = scores.logsumexp(-1).float()
        return output, lse


class OnGpu(Tensor):
    """A tensor that says it is on a GPU, so that a layout takes that path."""

    is_cuda = True  # type: ignore[assignment]


class VarlenKernel:
    """``varlen_attn`` by its documentation; refuses calls that the real one would not take.

    Args:
        lacks: A parameter that an older torch did not have.
    """

    def __init__(self, lacks: str = "") -> None:
        kept = [p for name, p in SIGNATURE.parameters.items() if name != lacks]
        self.__signature__ = SIGNATURE.replace(parameters=kept)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        self.__signature__.bind(*args, **kwargs)
        call = SIGNATURE.bind(*args, **kwargs)
        call.apply_defaults()
        self.calls.append(call.arguments)
        return self.compute(**{k: v for k, v in call.arguments.items() if v is not None})

    def compute(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        window_size: tuple[int, int],
        enable_gqa: bool,
        scale: float | None = None,
    ) -> Tensor:
        assert scale is not None, "the model's own factor, never the kernel's default"
        assert enable_gqa or query.shape[1] == key.shape[1]
        assert key.shape == value.shape
        repeat = query.shape[1] // key.shape[1]
        rows = list(zip(spans(cu_seq_q, query, max_q), spans(cu_seq_k, key, max_k), strict=True))
        outputs = []
        for queries, keys in rows:
            q, k, v = (
                query.as_subclass(Tensor)[slice(*queries)],
                key.as_subclass(Tensor)[slice(*keys)].repeat_interleave(repeat, 1),
                value.as_subclass(Tensor)[slice(*keys)].repeat_interleave(repeat, 1),
            )
            place = torch.arange(len(q)).unsqueeze(1) + len(k) - len(q)
            behind = place - torch.arange(len(k))
            left, right = (2**31 if side == -1 else side for side in window_size)
            seen = (behind <= left) & (behind >= -right)
            scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * scale
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, v.double()))
        return torch.cat(outputs)


def spans(ends: Tensor, tokens: Tensor, longest: int) -> list[tuple[int, int]]:
    """Rows as (start, end), the contract of cumulative lengths checked."""
    assert ends.dtype == torch.int32
    bounds = ends.tolist()
    assert bounds[0] == 0
    assert bounds[-1] == len(tokens)
    rows = list(pairwise(bounds))
    assert all(start < end for start, end in rows)
    assert longest == max(end - start for start, end in rows)
    return rows
