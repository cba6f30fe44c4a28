"""The rewards that come with Roost. Each takes completions and the columns it names.

Imports are light: math-verify and reasoning-gym load when their reward is first used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from roost.rewards.numbers import last_number, to_fraction


def exact_match(completions: Sequence[str], answer: Sequence[Any]) -> list[float]:
    """1 where the completion, white space at its ends aside, is the answer; else 0."""
    return [
        float(text.strip() == str(right).strip())
        for text, right in zip(completions, answer, strict=True)
    ]


def numeric(completions: Sequence[str], answer: Sequence[Any]) -> list[float | None]:
    """1 where the last number in the completion equals the answer exactly; else 0.

    Thousands separators, decimals and fractions are understood: 1,234.50 equals 2469/2. None where
    the answer itself is not a number.
    """
    return [_numeric(text, right) for text, right in zip(completions, answer, strict=True)]


def _numeric(text: str, answer: Any) -> float | None:
    right = to_fraction(str(answer))
    return None if right is None else float(last_number(text) == right)


def math(completions: Sequence[str], answer: Sequence[Any]) -> list[float | None]:
    """1 where math-verify finds the completion equal to the answer; else 0.

    Understands LaTeX, sets, intervals and expressions. None where the answer cannot be parsed.
    """
    from math_verify import parse, verify

    scores: list[float | None] = []
    for text, right in zip(completions, answer, strict=True):
        # math-verify reads mathematics inside dollar signs; a bare answer is mathematics too.
        gold = parse(str(right)) if "$" in str(right) else parse(f"${right}$")
        scores.append(float(verify(gold, parse(text))) if gold else None)
    return scores


def format(completions: Sequence[str], pattern: str) -> list[float]:
    """1 where the whole completion matches the regular expression ``pattern``; else 0.

    The dot matches line breaks.
    """
    compiled = re.compile(pattern, re.DOTALL)
    return [float(compiled.fullmatch(text.strip()) is not None) for text in completions]


def length_penalty(
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    max_tokens: int,
    soft_tokens: int = 0,
) -> list[float]:
    """0 for short completions, falling to -1 at ``max_tokens``.

    The fall is linear over the last ``soft_tokens`` tokens before ``max_tokens``: the soft overlong
    punishment of DAPO (arXiv:2503.14476).
    """
    start = max_tokens - soft_tokens
    return [-_share(len(ids) - start, soft_tokens) for ids in completion_ids]


def _share(over: int, span: int) -> float:
    if over <= 0:
        return 0.0
    return min(1.0, over / span) if span else 1.0


def repetition_penalty(
    completions: Sequence[str], ngram: int = 3, max_penalty: float = 1.0
) -> list[float]:
    """``-max_penalty`` times the share of word n-grams that repeat an earlier one."""
    return [-max_penalty * _repeated(text.lower().split(), ngram) for text in completions]


def _repeated(words: Sequence[str], n: int) -> float:
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


def reasoning_gym(
    completions: Sequence[str],
    task: Sequence[str],
    entry: Sequence[dict[str, Any]],
) -> list[float]:
    """The score that the reasoning-gym task itself gives, from 0 to 1.

    The answer is what stands in the last ``<answer>`` tag, or else the whole completion.
    """
    from reasoning_gym import get_score_answer_fn

    return [
        float(get_score_answer_fn(name)(answer=extract_answer(text), entry=item))
        for text, name, item in zip(completions, task, entry, strict=True)
    ]


def extract_answer(text: str) -> str:
    """The text in the last ``<answer>`` tag, or all of it, without white space at the ends.

    >>> extract_answer("so <answer> 4 </answer>."), extract_answer(" 4 ")
    ('4', '4')
    """
    tagged = _ANSWER_TAG.findall(text)
    return (tagged[-1] if tagged else text).strip()


BUILTINS: dict[str, Callable[..., Any]] = {
    "exact_match": exact_match,
    "numeric": numeric,
    "math": math,
    "format": format,
    "length_penalty": length_penalty,
    "repetition_penalty": repetition_penalty,
    "reasoning_gym": reasoning_gym,
}
"""Names that ``rewards.functions`` takes without a file."""
