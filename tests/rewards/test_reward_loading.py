from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from roost.config import RewardsConfig
from roost.errors import RewardError
from roost.rewards import check_columns, load_rewards
from roost.rewards.loading import accepted
from roost.samples import Prompt


def load(functions: list[Any], base_dir: Path = Path(), **named: Any) -> list[Any]:
    config = RewardsConfig.model_validate({"functions": functions})
    return load_rewards(config, base_dir, functions=named)


def prompts(*columns: dict[str, Any]) -> list[Prompt]:
    return [Prompt(i, (1,), f"p{i}", row) for i, row in enumerate(columns)]


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
        ("my_rewards.py:number", r"'number' is of type int, not a function"),
        ("no_such_module:f", r"'no_such_module' does not import: ModuleNotFoundError"),
        ("bad.py:f", r"'bad\.py' does not import: ZeroDivisionError.*\(bad\.py line 2\)"),
        ("syntax.py:f", r"does not import: SyntaxError: .*\(syntax\.py, line 2\)\. Mend it"),
        ("exits.py:f", r"does not import: SystemExit: 3 \(exits\.py line 1\)"),
        ("my_rewards:digits", r"Did you mean 'my_rewards\.py:\.\.\.'"),
        ("my_rewards.py", r"A function of your own is named 'my_rewards\.py:function'"),
        ("builtins:max", r"the arguments of 'max' cannot be found out"),
        (":f", r"write 'file\.py:function'"),
    ],
)
def test_what_cannot_be_loaded(folder: Path, function: str, message: str) -> None:
    (folder / "bad.py").write_text("x = 1\nx / 0\n")
    (folder / "syntax.py").write_text("x = 1\ndef f(:\n")
    (folder / "exits.py").write_text("raise SystemExit(3)\n")
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
    check_columns(rewards, prompts({"answer": "1"}))
    with pytest.raises(
        RewardError, match=r"'digits' needs 'answer'.*there are: answers.*Did you mean 'answers'"
    ):
        check_columns(rewards, prompts({"answers": "1"}))
    spec = {"function": "my_rewards.py:digits", "args": {"scael": 3}}
    with pytest.raises(
        RewardError, match=r"'digits' takes no argument 'scael'\. Did you mean 'scale'"
    ):
        load([spec], folder)
    with pytest.raises(RewardError, match=r"needs 'answer', a column that some rows lack.*'p1'"):
        check_columns(rewards, prompts({"answer": "1"}, {"note": ""}))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"function": "format", "args": {"pattern": "(a"}},
            r"args\.pattern = '\(a' is not a regular expression: missing \)",
        ),
        (
            {"function": "length_penalty", "args": {"max_tokens": "many"}},
            r"args\.max_tokens = 'many' should be a whole number",
        ),
        (
            {"function": "length_penalty", "args": {"max_tokens": True}},
            r"args\.max_tokens = True should be a whole number",
        ),
        (
            {"function": "my_rewards.py:digits", "args": {"scale": "much"}},
            r"args\.scale = 'much' should be a number",
        ),
    ],
)
def test_arguments_of_another_kind(folder: Path, spec: dict[str, Any], message: str) -> None:
    (folder / "my_rewards.py").write_text("def digits(completions, scale: float = 1): ...\n")
    with pytest.raises(RewardError, match=message):
        load([spec], folder)


def test_only_what_a_function_takes_is_passed() -> None:
    def some(completions: list[str], a: int = 0) -> None: ...
    def every(completions: list[str], **columns: Any) -> None: ...

    offered = {"completions": 1, "a": 2, "b": 3}
    assert accepted(some, offered) == {"completions": 1, "a": 2}
    assert accepted(every, offered) == offered
