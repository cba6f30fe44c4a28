"""A bucket survives its way unchanged, or is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from roost.errors import EngineError
from roost.sync.transports import pack, read_shared, remove_buckets, unpack


def bucket() -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(6, 4, generator=generator)
    return [
        ("a", wide),
        ("half", torch.randn(3, 5, generator=generator).bfloat16()),
        ("turned", wide.t()),
        ("empty", torch.zeros(0, 3)),
        ("scalar", torch.tensor(2.5)),
    ]


def test_tensors_arrive_as_they_were_sent() -> None:
    sent = bucket()
    found = unpack(*pack(sent))
    assert [name for name, _ in found] == [name for name, _ in sent]
    for (_, before), (_, after) in zip(sent, found, strict=True):
        assert after.dtype == before.dtype
        assert torch.equal(after, before)


def test_a_flipped_bit_is_refused_by_name() -> None:
    manifest, data = pack(bucket())
    data[manifest[1]["start"] + 3] ^= 16
    with pytest.raises(EngineError, match="half did not arrive as it was sent"):
        unpack(manifest, data)


def test_a_bucket_that_is_cut_short_is_refused() -> None:
    manifest, data = pack(bucket())
    with pytest.raises(EngineError, match="scalar arrived in part: 2 of 4 bytes"):
        unpack(manifest, data[:-2])


@pytest.mark.parametrize(
    "change",
    [{"dtype": "object"}, {"shape": [-1, 4]}, {"start": 8}, {"dtype": "float16"}],
)
def test_a_manifest_that_lies_is_refused(change: dict[str, Any]) -> None:
    manifest, data = pack(bucket())
    manifest[0] |= change
    with pytest.raises(EngineError):
        unpack(manifest, data)


def test_bytes_that_no_tensor_explains_are_refused() -> None:
    manifest, data = pack(bucket())
    with pytest.raises(EngineError, match="2 bytes that no tensor explains"):
        unpack(manifest, data + b"xx")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "bucket-1", "", "bucket-" + "g" * 16])
def test_only_buckets_are_read_from_the_shared_folder(name: str, tmp_path: Path) -> None:
    (tmp_path.parent / "secret").write_bytes(b"x")
    with pytest.raises(EngineError, match="not the name of a bucket"):
        read_shared(tmp_path, name)


def test_a_bucket_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read: No such file"):
        read_shared(tmp_path, "bucket-0123456789abcdef")


def test_buckets_that_were_left_go_and_nothing_else(tmp_path: Path) -> None:
    for name in ("bucket-0123456789abcdef", "bucket-fedcba9876543210", "adapter"):
        (tmp_path / name).touch()
    remove_buckets(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["adapter"]
