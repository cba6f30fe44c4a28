from __future__ import annotations

import re

import pytest

from roost.bench.prompts import Prompter, build_rows, read_rows, write_rows
from roost.config import ModelConfig
from roost.model.loading import load_tokenizer
from roost.model.source import find_model


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("wanted", [45, 128, 512])
def test_prompts_come_close_to_their_length_and_never_exceed_it(wanted: int) -> None:
    lengths = [words(row["prompt"][0]["content"]) for row in build_rows(6, wanted, words)]
    assert max(lengths) <= wanted
    assert min(lengths) > wanted - 5, "an example has five words"


def test_a_question_is_never_cut() -> None:
    rows = build_rows(3, 1, words)
    assert all(row["prompt"][0]["content"].startswith("State the final answer") for row in rows)


def test_questions_are_different_and_answered_rightly() -> None:
    rows = build_rows(50, 40, words)
    questions = [row["prompt"][0]["content"] for row in rows]
    assert len(set(questions)) == 50
    for row, question in zip(rows, questions, strict=True):
        a, sign, b = re.search(r"problem: (\d+) ([+-]) (\d+) =$", question).groups()
        assert int(row["answer"]) == (int(a) + int(b) if sign == "+" else int(a) - int(b))


def test_long_prompts_share_no_beginning() -> None:
    """Else a cache of prefixes would serve one prompt from another."""
    rows = build_rows(20, 200, words)
    assert len({row["prompt"][0]["content"][:40] for row in rows}) == 20


def test_a_prompter_counts_what_the_model_sees(tmp_path) -> None:
    prompter = Prompter(load_tokenizer(find_model(ModelConfig(path="tiny"))))
    rows = prompter.rows(4, 200)

    lengths = [len(prompt.token_ids) for prompt in prompter.encode(rows)]

    assert max(lengths) <= 200
    assert min(lengths) > 180
    write_rows(rows, tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == rows
