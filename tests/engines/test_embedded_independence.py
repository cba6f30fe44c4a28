"""A sample depends on its key and its prompt only, whatever shares the batch with it."""

from __future__ import annotations

from engine_support import make_engine, make_prompts, run
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.engines.protocol import SamplingParams
from roost.model.flash import padded
from support.small_models import build

MODEL = build("llama")
GEMMA = build("gemma2")
BYTES_PER_TOKEN = 3 * 2 * 2 * 8 * 4
"""Layers, keys and values, kv heads, head dim, float32."""
STOPS = frozenset(range(10, 20))


def tokens(samples):
    return {key: sample.token_ids for key, sample in samples.items()}


def test_alone_and_together_are_the_same():
    prompts = make_prompts((4, 11, 1, 7, 19))
    sampling = SamplingParams(20, stop_token_ids=STOPS)
    together = tokens(run(make_engine(GEMMA), prompts, 4, sampling, seed=3, step=5))
    for prompt in prompts:
        alone = tokens(run(make_engine(GEMMA), [prompt], 4, sampling, seed=3, step=5))
        assert alone == {key: together[key] for key in alone}
    fewer = tokens(run(make_engine(GEMMA), prompts[::-1], 2, sampling, seed=3, step=5))
    assert fewer == {key: together[key] for key in fewer}


def test_seed_step_prompt_and_index_each_matter():
    (prompt,) = make_prompts((6,))
    twin = make_prompts((6,), first_id=1)[0]
    sampling = SamplingParams(20)
    base = tokens(run(make_engine(MODEL), [prompt, twin], 2, sampling, seed=1, step=1))
    drawn = [tuple(ids) for ids in base.values()]
    for seed, step in ((2, 1), (1, 2)):
        other = tokens(run(make_engine(MODEL), [prompt], 1, sampling, seed=seed, step=step))
        drawn += [tuple(ids) for ids in other.values()]
    assert len(set(drawn)) == len(drawn) == 6


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    generations=st.integers(1, 5),
    budget=st.integers(1, 12),
    sequences=st.integers(1, 9) | st.none(),
    spare=st.integers(0, 80),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_mix_under_any_bound_is_the_same(lengths, generations, budget, sequences, spare, seed):
    prompts = make_prompts(lengths, seed=seed)
    sampling = SamplingParams(budget, stop_token_ids=STOPS)
    free = tokens(run(make_engine(MODEL), prompts, generations, sampling, seed=seed))
    least = padded(max(lengths)) + padded(max(1, budget - 1))
    tight = make_engine(
        MODEL, max_sequences=sequences, cache_bytes=(least + spare) * BYTES_PER_TOKEN
    )
    assert tokens(run(tight, prompts, generations, sampling, seed=seed)) == free
    assert tight.peak_bytes <= tight.cache_bytes
    assert tight.progress.finished == len(free)
    assert tight.progress.tokens == sum(map(len, free.values()))
    assert tight.progress.active == tight.progress.queued == 0
