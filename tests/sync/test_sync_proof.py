"""Buckets, digests and checks: each fault is caught and named."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roost.errors import EngineError
from roost.sync.buckets import buckets
from roost.sync.digest import combined_digest, tensor_digest
from roost.sync.names import NameMap, TensorInfo
from roost.sync.proof import (
    PROBE_LIMITS,
    check_digests,
    check_probe,
    check_version,
    check_written,
)

DTYPES = (torch.float32, torch.bfloat16)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(4, 120))
def test_buckets_hold_everything_once_in_order_within_the_bound(
    sizes: list[int], limit: int
) -> None:
    tensors = [(str(index), torch.zeros(size)) for index, size in enumerate(sizes)]
    made = list(buckets(tensors, limit))
    assert [name for bucket in made for name, _ in bucket] == [name for name, _ in tensors]
    for bucket in made:
        assert bucket
        assert len(bucket) == 1 or sum(t.nbytes for _, t in bucket) <= limit
    for one, two in itertools.pairwise(made):
        assert sum(t.nbytes for _, t in [*one, two[0]]) > limit, "it would have fitted"


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_values_have_equal_digests_wherever_they_lie(dtype: torch.dtype) -> None:
    tensor = torch.randn(7, 9).to(dtype)
    assert tensor_digest(tensor) == tensor_digest(tensor.clone())
    assert tensor_digest(tensor.t().contiguous().t()) == tensor_digest(tensor)
    assert tensor_digest(torch.tensor([-0.0, 1.0])) == tensor_digest(torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_flipped_bit_shows(dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 5).to(dtype)
    width = torch.int32 if dtype is torch.float32 else torch.int16
    bits = 8 * tensor.element_size()
    seen = {tensor_digest(tensor)}
    for place in range(tensor.numel()):
        for bit in range(bits):
            flipped = tensor.clone()
            sign = -(1 << (bits - 1)) if bit == bits - 1 else 1 << bit
            flipped.view(-1).view(width)[place] ^= sign
            seen.add(tensor_digest(flipped))
    assert len(seen) == 1 + tensor.numel() * bits


def test_order_counts_within_a_tensor_beyond_one_chunk_and_between_tensors() -> None:
    long = torch.arange(2**18 + 10, dtype=torch.float32)
    swapped = long.clone()
    swapped[[3, 2**18 + 3]] = long[[2**18 + 3, 3]]
    assert tensor_digest(long) != tensor_digest(swapped)
    assert combined_digest({"a": "1", "b": "2"}) != combined_digest({"a": "2", "b": "1"})
    assert combined_digest({"a": "1", "b": "2"}) == combined_digest({"b": "2", "a": "1"})


def names() -> NameMap:
    infos = {name: TensorInfo((2,), torch.float32) for name in ("a.w", "b.w", "c.w")}
    return NameMap(infos, infos, {})


ALL = ["a.w", "b.w", "c.w"]


@pytest.mark.parametrize(
    ("received", "written", "says"),
    [
        (["a.w", "c.w"], ALL, "b.w was not sent"),
        ([*ALL, "b.w"], ALL, "b.w was sent 2 times"),
        ([*ALL, "d.w"], ALL, "d.w is no tensor of the model"),
        (ALL, ["a.w", "b.w"], "c.w was not written"),
        ([], [], "a.w was not sent"),
    ],
)
def test_a_partial_sync_is_refused(received: list[str], written: list[str], says: str) -> None:
    with pytest.raises(EngineError, match=says):
        check_written(names(), received, written)


def test_a_whole_one_passes() -> None:
    check_written(names(), ALL, ALL)


def test_what_differs_is_named_and_whose_content_it_is() -> None:
    sent = {"a.w": "1", "b.w": "2", "c.w": "3"}
    assert check_digests(sent, dict(sent)) == combined_digest(sent)
    with pytest.raises(EngineError, match="b.w is not what was sent\n?$"):
        check_digests(sent, sent | {"b.w": "9"})
    with pytest.raises(EngineError, match="a.w is not what was sent, but the content of b.w"):
        check_digests(sent, sent | {"a.w": "2", "b.w": "1"})
    with pytest.raises(EngineError, match="b.w is not what was sent, but zeros"):
        check_digests(sent, sent | {"b.w": tensor_digest(torch.zeros(2, 3))})
    with pytest.raises(EngineError, match="the engine holds no c.w"):
        check_digests(sent, {"a.w": "1", "b.w": "2"})
    with pytest.raises(EngineError, match="d.w is unknown"):
        check_digests(sent, sent | {"d.w": "4"})


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_probe_has_the_limit_of_its_dtype(dtype: torch.dtype) -> None:
    limit = PROBE_LIMITS[dtype]
    assert check_probe([-1.0, -2.0], [-1.0, -2.0 - limit], dtype) == pytest.approx(limit / 2)
    with pytest.raises(EngineError, match="a probe"):
        check_probe([-1.0], [-1.0 - 1.01 * limit], dtype)
    with pytest.raises(EngineError, match="a probe nan"):
        check_probe([-1.0], [float("nan")], dtype)


def test_versions_agree() -> None:
    check_version(3, "3")
    for other in ("2", "4", "default", ""):
        with pytest.raises(EngineError, match="is at version 3"):
            check_version(3, other)
