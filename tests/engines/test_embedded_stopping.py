"""Completions end where they should: stop tokens, stop strings, budget."""

from __future__ import annotations

import pytest
from engine_support import make_engine, make_prompts, run
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.engines.embedded import stop_token_ids
from roost.engines.embedded.stopping import StopStrings
from roost.engines.protocol import SamplingParams
from roost.model.policy import Policy
from roost.samples import FinishReason, TokenSource
from support.byte_tokenizer import SIZE, byte_tokenizer
from support.small_models import build

TOKENIZER = byte_tokenizer()


def first_hit(strings, ids):
    """How many tokens it takes until the decoded text holds a stop string; None if it never does.

    The whole text is decoded anew each time, unlike in the engine.
    """
    for count in range(1, len(ids) + 1):
        if any(string in TOKENIZER.decode(ids[:count]) for string in strings):
            return count
    return None


def engine_hit(strings, ids):
    finder = StopStrings(TOKENIZER, tuple(strings))
    return next((n for n in range(1, len(ids) + 1) if finder.found(ids[:n])), None)


@pytest.mark.parametrize(
    ("stop", "text", "count"),
    [
        ("END", "the ENDing", 7),
        ("END", "EN", None),
        ("é", "café!", 5),
        ("日本", "in 日本語", 9),
        ("\n\n", "a\n\nb", 3),
        ("🐔.", "🐔🐔.", 9),
    ],
)
def test_stop_string_is_found_at_its_last_byte(stop, text, count):
    ids = TOKENIZER.encode(text)
    assert engine_hit([stop], ids) == first_hit([stop], ids) == count


@settings(deadline=None)
@given(
    st.text(alphabet="ab\né日", max_size=40),
    st.lists(st.text(alphabet="ab\né日", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_agree_with_decoding_everything(text, strings):
    ids = TOKENIZER.encode(text)
    assert engine_hit(strings, ids) == first_hit(strings, ids)


def test_special_tokens_count_as_text():
    ids = [*TOKENIZER.encode("ab"), 2, *TOKENIZER.encode("c")]
    assert engine_hit(["<eos>"], ids) == 3


def test_engine_stops_at_a_stop_string():
    model = build("llama", vocab_size=SIZE)
    prompts = make_prompts((5, 3))
    free = run(make_engine(model, TOKENIZER), prompts, 4, SamplingParams(60))
    text = free[0, 1].text
    stop = text[20:23]
    assert len(stop) == 3
    stopped = run(make_engine(model, TOKENIZER), prompts, 4, SamplingParams(60, stop=(stop,)))
    for key, sample in stopped.items():
        hit = first_hit([stop], free[key].token_ids)
        assert sample.token_ids == free[key].token_ids[:hit]
        assert sample.finish_reason is (FinishReason.STOP if hit else FinishReason.LENGTH)
    assert stopped[0, 1].finish_reason is FinishReason.STOP


def test_samples_are_complete():
    model = build("llama", vocab_size=SIZE)
    engine = make_engine(model, TOKENIZER)
    engine.policy.version = 17
    stop = frozenset({2, *range(40, 46)})
    samples = run(engine, make_prompts((4, 6)), 6, SamplingParams(30, stop_token_ids=stop))
    assert {s.finish_reason for s in samples.values()} == set(FinishReason)
    for sample in samples.values():
        size = len(sample.token_ids)
        assert 1 <= size <= 30
        assert len(sample.logprobs) == len(sample.kept_mass_logs) == size
        assert sample.policy_versions == [17] * size
        assert sample.sources == [TokenSource.MODEL] * size
        assert sample.text == TOKENIZER.decode(sample.token_ids, skip_special_tokens=True)
        ends = [token in stop for token in sample.token_ids]
        assert not any(ends[:-1])
        assert ends[-1] is (sample.finish_reason is FinishReason.STOP)


@pytest.mark.parametrize("budget", [1, 2])
def test_the_smallest_budgets(budget):
    model = build("gemma3")
    samples = run(make_engine(model), make_prompts((1, 9)), 3, SamplingParams(budget))
    assert all(len(s.token_ids) == budget for s in samples.values())
    assert all(s.finish_reason is FinishReason.LENGTH for s in samples.values())


def test_stop_tokens_come_from_all_who_name_them():
    model = build("llama")
    policy = Policy(model)
    model.generation_config.eos_token_id = [7, 32]
    assert stop_token_ids(policy, TOKENIZER) == {2, 7, 32}
    model.generation_config.eos_token_id = 9
    assert stop_token_ids(policy, None) == {2, 9}
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    assert stop_token_ids(policy, None) == frozenset()
