"""The prompts of a benchmark: chat arithmetic, brought to a length by worked examples before it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from roost.config import DataConfig
from roost.data import arithmetic
from roost.data.templates import ChatFormatter
from roost.samples import Prompt

QUESTION = "State the final answer to the following arithmetic problem: {problem} ="
Row = dict[str, Any]


def build_rows(count: int, prompt_tokens: int, length: Callable[[str], int]) -> list[Row]:
    """Rows of different sums and differences, as long as can be without exceeding a length.

    A question is never cut: where it alone is longer, it stands alone.

    Args:
        count: How many.
        prompt_tokens: The length to come close to.
        length: Tokens of a prompt with this text as its user message.

    Returns:
        Rows with ``prompt`` (chat messages) and ``answer``.
    """
    problems = arithmetic.rows(size=count, seed=1)
    return [
        {
            "prompt": [{"role": "user", "content": _text(number, problem, prompt_tokens, length)}],
            "answer": problem["answer"],
        }
        for number, problem in enumerate(problems)
    ]


def _text(
    number: int, problem: dict[str, str], prompt_tokens: int, length: Callable[[str], int]
) -> str:
    question = QUESTION.format(problem=_spaced(problem["prompt"].removesuffix("=")))
    examples: list[str] = []
    for example in _examples(number):
        longer = " ".join([*examples, example, question])
        if length(longer) > prompt_tokens:
            break
        examples.append(example)
    return " ".join([*examples, question])


def _examples(number: int) -> Iterator[str]:
    """Worked examples without end, other ones for each prompt, so that prompts share no text."""
    rng = random.Random(number)
    while True:
        a, b = rng.randrange(100), rng.randrange(100)
        yield f"{a} + {b} = {a + b}."


def _spaced(problem: str) -> str:
    return problem.replace("+", " + ").replace("-", " - ")


class Prompter:
    """Makes and encodes prompts for a model.

    Args:
        tokenizer: The model's, with a chat template.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._formatter = ChatFormatter(tokenizer, DataConfig(), Path.cwd())

    def rows(self, count: int, prompt_tokens: int) -> list[Row]:
        """See ``build_rows``."""
        return build_rows(count, prompt_tokens, self._length)

    def encode(self, rows: Sequence[Row]) -> list[Prompt]:
        """Token ids of rows, chat template applied."""
        return [
            Prompt(number, self._formatter.encode(row["prompt"], number + 1), row["prompt"])
            for number, row in enumerate(rows)
        ]

    def _length(self, text: str) -> int:
        return len(self._formatter.encode([{"role": "user", "content": text}], 1))


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Save rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: str | Path) -> list[Row]:
    """What ``write_rows`` saved."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
