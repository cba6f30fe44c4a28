"""Reward functions."""

from __future__ import annotations

from typing import Any

from support.bad_input.case import Arguments, case
from support.desk import Desk

BODY = "def digits(completions, answer):\n    return [0.0 for _ in completions]\n"


def own(body: str, reference: str = "my_rewards.py:digits") -> Arguments:
    def arguments(desk: Desk) -> list[str]:
        desk.write("my_rewards.py", body)
        return desk.check(rewards=[reference])

    return arguments


def builtin(*functions: Any) -> Arguments:
    return lambda desk: desk.check(rewards=list(functions))


def two_of_one_name(desk: Desk) -> list[str]:
    desk.write("one.py", BODY)
    desk.write("two.py", BODY)
    return desk.check(rewards=["one.py:digits", "two.py:digits"])


def all_fail(desk: Desk) -> list[str]:
    desk.write("my_rewards.py", "def digits(completions):\n    raise ValueError('no')\n")
    return desk.train(rewards=["my_rewards.py:digits"], eval={"prompts": 0})


CASES = [
    case("none", builtin(), "rewards.functions: is empty", "such as 'numeric'"),
    case(
        "not-a-list",
        lambda desk: desk.check(rewards="numeric"),
        "rewards.functions = 'numeric': should be a list, such as ['numeric']",
    ),
    case(
        "built-in-misspelt",
        builtin("numerics"),
        "no reward 'numerics'",
        "Did you mean 'numeric'?",
    ),
    case("file-absent", builtin("mine.py:f"), "no file 'mine.py'", "folder of the recipe"),
    case(
        "file-misspelt",
        own(BODY, "my_reward.py:digits"),
        "no file 'my_reward.py'",
        "Did you mean 'my_rewards.py'?",
    ),
    case(
        "file-does-not-import",
        own("import no_such_package\n"),
        "'my_rewards.py' does not import: ModuleNotFoundError",
        "'no_such_package' (my_rewards.py line 1)",
        "install what it imports",
    ),
    case(
        "syntax-error",
        own("def digits(completions):\n    return [1.0 for _ in completions\n"),
        "'my_rewards.py' does not import: SyntaxError: '[' was never closed",
        "line 2",
    ),
    case(
        "function-not-there",
        own(BODY, "my_rewards.py:digit"),
        "'my_rewards.py' has no 'digit'",
        "Did you mean 'digits'?",
    ),
    case(
        "function-not-named",
        own(BODY, "my_rewards.py"),
        "'my_rewards.py:function'",
    ),
    case(
        "not-a-function",
        own("digits = 3\n"),
        "rewards.functions = 'my_rewards.py:digits'",
        "'digits' is of type int, not a function",
    ),
    case("a-class", own("class digits:\n    pass\n"), "'digits' is a class"),
    case(
        "an-async-generator",
        own("async def digits(completions):\n    yield 0.0\n"),
        "'digits' yields its numbers. Return them in a list",
    ),
    case(
        "a-generator",
        own("def digits(completions):\n    yield 0.0\n"),
        "'digits' yields its numbers. Return them in a list",
    ),
    case(
        "two-of-one-name",
        two_of_one_name,
        "rewards.functions: 2 are called 'digits'",
        "giving each a `name`",
    ),
    case(
        "column-absent",
        own("def digits(completions, solution):\n    return [0.0]\n"),
        "reward 'digits' needs 'solution'",
        "there are: answer",
        "add the column",
    ),
    case(
        "column-absent-in-a-row",
        lambda desk: desk.check(data=desk.rows([*desk.problems(9), {"prompt": "9+9="}])),
        "reward 'numeric' needs 'answer', a column that some rows lack",
        "'9+9='",
    ),
    case(
        "argument-misspelt",
        builtin({"function": "repetition_penalty", "args": {"n_gram": 2}}),
        "reward 'repetition_penalty' takes no argument 'n_gram'",
        "Did you mean 'ngram'?",
    ),
    case(
        "argument-of-another-type",
        builtin({"function": "repetition_penalty", "args": {"ngram": "two"}}),
        "args.ngram = 'two' should be a whole number",
    ),
    case(
        "pattern-broken",
        builtin({"function": "format", "args": {"pattern": "("}}),
        "args.pattern = '(' is not a regular expression",
    ),
    case(
        "setting-misspelt",
        builtin({"function": "numeric", "wieght": 2}),
        "wieght: no such field",
        "Did you mean 'weight'?",
    ),
    case(
        "all-weights-zero",
        builtin({"function": "numeric", "weight": 0}),
        "rewards.functions: every weight is 0",
    ),
    case(
        "all-samples-fail",
        all_fail,
        "none of the 4 samples of this step could be scored",
        "reward 'digits': ValueError: no",
        began=True,
    ),
]
