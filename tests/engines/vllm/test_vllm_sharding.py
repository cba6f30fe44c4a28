"""Models that tensor parallelism cannot divide are refused before anything is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roost.engines.vllm.sharding import check_shards
from roost.errors import ConfigError
from roost.planner.model_config import shape_from_config
from support.small_models import build

SHAPE = shape_from_config(build("llama").config.to_dict())
"""6 heads, 2 of keys and values, 64 wide, 96 tokens."""


@pytest.mark.parametrize("count", [1, 2])
def test_what_divides_everything_is_taken(count: int) -> None:
    check_shards(count, SHAPE, "field")


def test_more_shards_than_heads_of_keys_hold_the_same_one() -> None:
    check_shards(4, replace(SHAPE, heads=8), "field")


@pytest.mark.parametrize(
    ("count", "changes", "says"),
    [
        (4, {}, r"field = 4: the model's attention heads \(6\) cannot be divided among 4 devices"),
        (3, {}, r"the model's heads of keys and values \(2\)"),
        (2, {"intermediate": 65}, r"the model's feed-forward width \(65\)"),
        (3, {"kv_heads": 3, "intermediate": 66}, r"vocabulary in blocks of 64 \(128\)"),
    ],
)
def test_what_does_not_come_out_even_is_named(
    count: int, changes: dict[str, int], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        check_shards(count, replace(SHAPE, **changes), "field")
