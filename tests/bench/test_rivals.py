from __future__ import annotations

import pytest

from roost.bench import rivals
from roost.errors import ConfigError


def test_names_are_taken_once_and_in_order() -> None:
    assert rivals.parse_rivals("trl-bf16, trl,trl-bf16", "step") == ["trl-bf16", "trl"]
    assert rivals.parse_rivals("none", "step") == []


@pytest.mark.parametrize("name", ["roost", "floor", "vllm"])
def test_who_is_no_rival_of_a_kind_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--rivals '{name}'"):
        rivals.parse_rivals(name, "step")


def test_a_near_miss_is_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'transformers'"):
        rivals.parse_rivals("transfomers", "generate")


def test_what_is_not_installed_comes_with_its_install_line(monkeypatch) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda name: None if name == "vllm" else object())
    here, lacking = rivals.split_installed(["trl", "trl-vllm"], "step")
    assert here == ["trl"]
    assert "pip install vllm" in lacking["trl-vllm"][0]


def test_all_contenders_have_the_same_threads() -> None:
    environment = rivals.environment(3)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
