"""Built-in shapes against the parameter counts that their makers publish; how names are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roost.errors import ModelError
from roost.planner.models import find_shape, known_models


@pytest.mark.parametrize(
    ("name", "parameters", "cache_bytes"),
    [
        # Parameters as the model cards' safetensors counts give them; cache 2 * L * kv * d * 2 B.
        ("Llama-3.1-8B", 8_030_261_248, 131_072),
        ("Llama-3.3-70B", 70_553_706_496, 327_680),
        ("Qwen3-32B", 32_762_123_264, 262_144),
        ("SmolLM2-135M", 134_515_008, 23_040),
    ],
)
def test_parameters_and_cache(name: str, parameters: int, cache_bytes: int) -> None:
    shape = find_shape(name).shape
    assert shape.parameters == parameters
    assert 2 * shape.kv_elements_per_token() == cache_bytes


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.1-8B-Instruct", "llama 3.1 8b", "LLAMA_3.1_8B"]
)
def test_a_name_is_found_however_it_is_written(name: str) -> None:
    assert find_shape(name) == find_shape("Llama-3.1-8B")


def test_every_built_in_shape_can_be_read() -> None:
    for name in known_models():
        known = find_shape(name)
        assert known.shape.parameters > 0
        assert known.source.startswith("http")


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(ModelError, match="Did you mean 'Qwen3-32B'"):
        find_shape("Qwen3-23B")


def test_a_folder_is_read_by_its_config(tmp_path: Path) -> None:
    tiny = find_shape("tiny")
    assert tiny.shape.parameters == 550_400
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not JSON"):
        find_shape(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps([]))
    with pytest.raises(ModelError, match="holds no JSON object"):
        find_shape(str(tmp_path))
