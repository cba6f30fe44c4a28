from __future__ import annotations

import pytest
import reasoning_gym as rg

from roost.rewards import builtin


def test_exact_match() -> None:
    assert builtin.exact_match([" a \n", "b"], ["a", "B"]) == [1.0, 0.0]


def test_numeric() -> None:
    assert builtin.numeric(["it is 1,000.", "999", "none"], ["1000", 1000, "1000"]) == [1, 0, 0]
    assert builtin.numeric(["3"], ["three"]) == [None]


def test_math() -> None:
    texts = ["so $\\frac{1}{2}$", "0.5", "$x+1$", "2"]
    assert builtin.math(texts, ["1/2", "\\frac{1}{2}", "1+x", "3"]) == [1.0, 1.0, 1.0, 0.0]
    assert builtin.math(["1"], [""]) == [None]


def test_format() -> None:
    pattern = r"<think>.*</think>\s*\d+"
    assert builtin.format(["<think>a\nb</think> 4\n", "4"], pattern) == [1.0, 0.0]


@pytest.mark.parametrize(("length", "penalty"), [(0, 0), (80, 0), (90, -0.5), (100, -1), (150, -1)])
def test_length_penalty(length: int, penalty: float) -> None:
    ids = [list(range(length))]
    assert builtin.length_penalty([""], ids, max_tokens=100, soft_tokens=20) == [penalty]


def test_length_penalty_without_a_soft_part() -> None:
    assert builtin.length_penalty(["", ""], [[1] * 5, [1] * 6], max_tokens=5) == [0.0, -1.0]


def test_repetition_penalty() -> None:
    scores = builtin.repetition_penalty(["a b c d", "a b a b a b", "a"], ngram=2)
    assert scores == [0.0, pytest.approx(-3 / 5), 0.0]


def test_reasoning_gym_scores_as_the_task_does() -> None:
    entry = rg.create_dataset("chain_sum", size=1, seed=1)[0]
    right = entry["answer"]
    texts = [right, f"I think <answer>{right}</answer>", "no idea"]
    scores = builtin.reasoning_gym(texts, ["chain_sum"] * 3, [entry] * 3)
    assert scores[:2] == [1.0, 1.0]
    assert scores[2] < 0.5
