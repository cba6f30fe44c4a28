"""From recipes and overrides to a configuration, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.config import RunConfig
from roost.config.loading import (
    build_config,
    dump_toml,
    load_config,
    parse_overrides,
    quickstart_path,
)
from roost.errors import ConfigError


def recipe(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_defaults_follow_trl() -> None:
    config = RunConfig()
    assert config.rollout.generations == 8
    assert config.rollout.temperature == 1.0
    assert config.rollout.max_completion_tokens == 512
    assert config.train.learning_rate == 1e-6
    assert config.loss.beta == 0.0
    assert config.loss.type == "dapo"


def test_a_recipe_with_overrides(tmp_path: Path) -> None:
    path = recipe(tmp_path, 'model = "folder"\n[train]\nsteps = 3\nlearning_rate = 1e-4\n')
    config = load_config(path, ["train.steps=5", "model.dtype=float32", "rollout.stop=['a']"])
    assert config.model.path == "folder"
    assert config.model.dtype == "float32"
    assert config.train.steps == 5
    assert config.train.learning_rate == 1e-4
    assert config.rollout.stop == ["a"]


@pytest.mark.parametrize(
    ("mapping", "check"),
    [
        ({"model": "x"}, lambda c: c.model.path == "x"),
        ({"data": "f.jsonl"}, lambda c: c.data.source == "f.jsonl"),
        (
            {"rewards": ["a", "b"]},
            lambda c: [r.function for r in c.rewards.functions] == ["a", "b"],
        ),
        (
            {"rewards": [{"function": "a", "weight": 2}]},
            lambda c: c.rewards.functions[0].weight == 2,
        ),
        ({"loss": "grpo"}, lambda c: c.loss.type == "grpo"),
    ],
)
def test_a_bare_value_sets_the_main_field(mapping: dict[str, Any], check: Any) -> None:
    assert check(build_config(mapping))


def test_an_empty_table_clears_what_the_recipe_set(tmp_path: Path) -> None:
    path = recipe(tmp_path, "[data]\noptions = { size = 3, largest = 9 }\n")
    assert load_config(path, ["data.options.size=5"]).data.options == {"size": 5, "largest": 9}
    assert load_config(path, ["data.options={}"]).data.options == {}


def test_a_mapping_that_holds_itself_is_refused() -> None:
    options: dict[str, Any] = {}
    options["again"] = options
    with pytest.raises(ConfigError, match="nested too deeply: more than 32"):
        build_config({"data": {"options": options}})


def test_an_override_may_span_lines_and_sets_one_field() -> None:
    assert parse_overrides(["a.b=[1,\n2]", "a.c=one\ntwo", "a.d=1 # said"]) == {
        "a": {"b": [1, 2], "c": "one\ntwo", "d": 1}
    }
    with pytest.raises(ConfigError, match=r"--set a: its value goes on with 'b=2'"):
        parse_overrides(["a=1\nb=2"])


def test_overrides_are_toml_or_bare_text() -> None:
    assert parse_overrides(["a.b=1", "a.c=x/y", "a.d=true", 'a.e="1"', "f=[1, 2]"]) == {
        "a": {"b": 1, "c": "x/y", "d": True, "e": "1"},
        "f": [1, 2],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [("steps = ", "is not TOML"), ("[train]\nstpes = 1", r"train\.stpes.*recipe\.toml")],
)
def test_a_bad_recipe_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(recipe(tmp_path, text))


def test_a_recipe_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(path)


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    recipe(tmp_path, "")
    with pytest.raises(ConfigError, match=r"no such file\. Did you mean 'recipe\.toml'"):
        load_config(tmp_path / "recipee.toml")


@pytest.mark.parametrize("override", ["train.steps", "=3", "train.=3"])
def test_an_override_that_sets_nothing(override: str) -> None:
    with pytest.raises(ConfigError, match=r"write section\.field=value"):
        parse_overrides([override])


@given(
    st.integers(1, 10**6),
    st.floats(1e-9, 1.0),
    st.lists(st.text(min_size=1, max_size=5), max_size=3),
    st.dictionaries(st.text("abc", min_size=1), st.integers() | st.text("xyz"), max_size=3),
)
def test_toml_brings_the_configuration_back(
    steps: int, rate: float, stop: list[str], options: dict[str, Any]
) -> None:
    config = build_config(
        {
            "train": {"steps": steps, "learning_rate": rate},
            "rollout": {"stop": stop},
            "data": {"options": options},
        }
    )
    import tomllib

    assert build_config(tomllib.loads(dump_toml(config))) == config


def test_the_quickstart_is_a_recipe() -> None:
    assert load_config(quickstart_path()).model.path == "tiny"


@pytest.mark.parametrize(
    ("method", "lora", "peak"),
    [("full", {}, 1e-5), ("full", {"learning_rate": 5e-4}, 1e-5), ("lora", {}, 1e-5),
     ("lora", {"learning_rate": 5e-4}, 5e-4), ("lora", {"learning_rate": 0.0}, 0.0)],
)  # fmt: skip
def test_an_adapter_may_have_a_rate_of_its_own(
    method: str, lora: dict[str, float], peak: float
) -> None:
    config = build_config({"train": {"method": method, "learning_rate": 1e-5}, "lora": lora})
    assert config.peak_learning_rate == peak


@pytest.mark.parametrize(
    ("engine", "mode", "decided"),
    [
        ("embedded", "auto", "off"),
        ("vllm", "auto", "truncate"),
        ("embedded", "mask", "mask"),
        ("vllm", "off", "off"),
    ],
)
def test_the_engine_decides_an_automatic_correction(engine: str, mode: str, decided: str) -> None:
    config = build_config({"rollout": {"engine": engine}, "correction": {"mode": mode, "max": 3}})
    assert config.decided_correction.mode == decided
    assert config.decided_correction.max == 3
    assert config.correction.mode == mode, "as asked, so that config.toml says what was asked for"
