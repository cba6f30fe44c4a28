"""No prompt of a run is one that vLLM refuses: they are left out, or cut, before step 0.

vLLM says no to a prompt that leaves no room for a token, to an empty one, and to tokens that its
vocabulary does not know. A colocated engine is made for the longest prompt of its run with a whole
completion, ``data`` refuses an empty prompt, and ``model`` a tokenizer of another vocabulary
(``tests/support/bad_input``); so here the longest that there can be are taken, and all of them are
sampled.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from vllm_support import TOKENIZER, needs_vllm

from support.tiny_runs import TinyRun, train_tiny

pytestmark = [needs_vllm, pytest.mark.slow]

CONTEXT = 1024
"""Positions of the tiny model."""
COMPLETION = 6
BUDGET = CONTEXT - COMPLETION


def row(tokens: int, number: int) -> dict[str, Any]:
    """A prompt of so many tokens; no two are alike."""
    text = f"{number}+".rjust(4, "1")
    while (short := tokens - len(TOKENIZER(text)["input_ids"])) > 0:
        text = "1" * short + text
    assert len(TOKENIZER(text)["input_ids"]) == tokens
    return {"prompt": text, "answer": number}


def write(file: Path, lengths: list[int]) -> str:
    file.write_text("".join(f"{json.dumps(row(n, i))}\n" for i, n in enumerate(lengths, 10)))
    return file.name


def train(folder: Path, **data: Any) -> TinyRun:
    lengths = [BUDGET - 1, BUDGET, BUDGET + 1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 2 * CONTEXT]
    sections: dict[str, Any] = {
        "data": {
            "source": write(folder / "train.jsonl", [20, 30, *lengths]),
            "options": {},
            "chat": "never",
            "prompts_per_step": 4,
            **data,
        },
        # Longer than any that is trained on where those are cut short.
        "eval": {"source": write(folder / "held_out.jsonl", [10, BUDGET, BUDGET + 1])},
        "rollout": {"engine": "vllm", "max_completion_tokens": COMPLETION},
        "train": {"steps": 1, "learning_rate": 0.0},
    }
    return train_tiny(folder / "run", folder, sections)


def sampled(run: TinyRun) -> Counter[int]:
    """Samples of the one step, by prompt."""
    (file,) = run.folder.samples.iterdir()
    return Counter(pq.read_table(file)["prompt_id"].to_pylist())


def test_a_prompt_at_the_limit_is_sampled_and_longer_ones_are_left_out(tmp_path: Path) -> None:
    run = train(tmp_path)
    assert any("left out: longer than 1,018 tokens" in line for line in run.lines)
    report = json.loads(run.folder.data.read_text())
    assert (report["dropped"], report["longest"]) == (6, BUDGET)
    assert list(sampled(run).values()) == [4] * 4
    assert run.result.finished, "and so the held-out prompt at the limit was sampled too"


def test_prompts_that_are_cut_are_sampled(tmp_path: Path) -> None:
    run = train(tmp_path, overlong="truncate", prompts_per_step=9)
    assert json.loads(run.folder.data.read_text())["truncated"] == 6
    assert list(sampled(run).values()) == [4] * 9
    assert run.result.finished
