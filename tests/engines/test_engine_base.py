"""How every engine's call begins, and what its samples say."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import cast

import pytest

from roost.engines.base import BaseEngine, Call, completion_text
from roost.engines.protocol import SampleKey, SamplingParams
from roost.samples import FinishReason, Prompt, Sample
from support.byte_tokenizer import byte_tokenizer

PROMPTS = (Prompt(7, (1, 2), ""), Prompt(3, (4,), ""))
SAMPLING = SamplingParams(4)


class Recording(BaseEngine):
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.closed = False

    def _generate(self, call: Call) -> Iterator[Sample]:
        self.calls.append(call)
        try:
            for prompt, key in call.samples():
                yield Sample(prompt.id, key.index, [], [], [], FinishReason.STOP, [], [])
        finally:
            self.closed = True


@pytest.mark.parametrize(("prompts", "generations"), [((), 4), (PROMPTS, 0), (PROMPTS, -1)])
def test_where_nothing_is_asked_for_the_engine_is_left_alone(
    prompts: tuple[Prompt, ...], generations: int
) -> None:
    engine = Recording()
    assert list(engine.generate(prompts, generations, SAMPLING, seed=0, step=0)) == []
    assert engine.calls == []


def test_samples_and_their_streams_come_prompt_by_prompt() -> None:
    [call] = _asked(Recording())
    assert list(call.samples()) == [
        (PROMPTS[0], SampleKey(5, 9, 7, 0)),
        (PROMPTS[0], SampleKey(5, 9, 7, 1)),
        (PROMPTS[1], SampleKey(5, 9, 3, 0)),
        (PROMPTS[1], SampleKey(5, 9, 3, 1)),
    ]
    assert call.sampling is SAMPLING


def test_a_call_begins_with_its_first_sample_and_ends_when_it_is_closed() -> None:
    engine = Recording()
    stream = cast(Generator[Sample], engine.generate(PROMPTS, 2, SAMPLING, seed=5, step=9))
    assert engine.calls == []
    next(stream)
    assert not engine.closed
    stream.close()
    assert engine.closed


def test_a_samples_text_leaves_special_tokens_out() -> None:
    tokenizer = byte_tokenizer()
    ids = [*tokenizer("2 , it 's").input_ids, tokenizer.eos_token_id]
    assert completion_text(tokenizer, ids) == "2 , it 's"
    assert completion_text(None, ids) == ""


def _asked(engine: Recording) -> list[Call]:
    list(engine.generate(PROMPTS, 2, SAMPLING, seed=5, step=9))
    return engine.calls
