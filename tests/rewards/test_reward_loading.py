from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from roost.config import RewardsConfig
from roost.errors import RewardError
from roost.rewards import check_columns, load_rewards
from roost.rewards.loading import accepted


def load(functions: list[Any], base_dir: Path = Path(), **named: Any) -> list[Any]:
    config = RewardsConfig.model_validate({"functions": functions})
    return load_rewards(config, base_dir, functions=named)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_rewards.py").write_text(
        "def digits(completions, answer, scale=1.0):\n    return [1.0 for _ in completions]\n"
        "number = 3\n"
    )
    return tmp_path


def test_from_a_file_beside_the_recipe(folder: Path) -> None:
    [reward] = load(["my_rewards.py:digits"], folder)
    assert reward.name == "digits"
    assert reward.weight == 1.0


def test_settings(folder: Path) -> None:
    spec = {"function": "my_rewards.py:digits", "name": "d", "weight": 2, "args": {"scale": 3}}
    [reward] = load([spec], folder)
    assert (reward.name, reward.weight, reward.args) == ("d", 2.0, {"scale": 3})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("numerics", r"no reward 'numerics'\. Did you mean 'numeric'"),
        ("my_reward.py:digits", r"no file 'my_reward\.py'.*Did you mean 'my_rewards\.py'"),
        ("my_rewards.py:digit", r"has no 'digit'\. Did you mean 'digits'"),
        ("my_rewards.py:number", r"'number' is a int, not a function"),
        ("no_such_module:f", r"'no_such_module' does not import: ModuleNotFoundError"),
        ("bad.py:f", r"'bad\.py' does not import: ZeroDivisionError.*\(bad\.py line 2\)"),
        (":f", r"write 'file\.py:function'"),
    ],
)
def test_what_cannot_be_loaded(folder: Path, function: str, message: str) -> None:
    (folder / "bad.py").write_text("x = 1\nx / 0\n")
    with pytest.raises(RewardError, match=message):
        load([function], folder)


def test_a_function_that_cannot_travel() -> None:
    lock = threading.Lock()

    def locked(completions: list[str]) -> list[float]:
        with lock:
            return [0.0 for _ in completions]

    with pytest.raises(RewardError, match="'locked' cannot be sent to a worker process"):
        load(["locked"], locked=locked)


def test_arguments_that_nobody_gives(folder: Path) -> None:
    rewards = load(["my_rewards.py:digits"], folder)
    check_columns(rewards, ["answer"])
    with pytest.raises(
        RewardError, match=r"'digits' needs 'answer'.*there are: answers.*Did you mean 'answers'"
    ):
        check_columns(rewards, ["answers"])
    spec = {"function": "my_rewards.py:digits", "args": {"scael": 3}}
    with pytest.raises(RewardError, match="'digits' takes no argument 'scael'"):
        check_columns(load([spec], folder), ["answer"])


def test_only_what_a_function_takes_is_passed() -> None:
    def some(completions: list[str], a: int = 0) -> None: ...
    def every(completions: list[str], **columns: Any) -> None: ...

    offered = {"completions": 1, "a": 2, "b": 3}
    assert accepted(some, offered) == {"completions": 1, "a": 2}
    assert accepted(every, offered) == offered
