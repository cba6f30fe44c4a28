"""At temperature 0 the engine's tokens are those of transformers' own ``generate``."""

from __future__ import annotations

import pytest
import torch
from engine_support import make_engine, make_prompts, run

from roost.engines.protocol import SamplingParams
from roost.samples import FinishReason
from support.small_models import ARCHITECTURES, build, eager_copy, with_adapter

LENGTHS = (5, 1, 17, 9, 3)
BUDGET = 24


def transformers_tokens(model, prompt, budget, stop=()):
    """Greedy completion of one prompt, alone, through transformers' generate."""
    ids = torch.tensor([prompt.token_ids])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=budget,
        do_sample=False,
        eos_token_id=list(stop) or None,
        pad_token_id=0,
        use_cache=True,
    )
    return output[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_equals_transformers(architecture):
    model = build(architecture)
    eager = eager_copy(model)
    eager.generation_config.eos_token_id = None
    prompts = make_prompts(LENGTHS)
    sampling = SamplingParams(BUDGET, temperature=0)
    samples = run(make_engine(model, max_sequences=7), prompts, 2, sampling)
    for prompt in prompts:
        expected = transformers_tokens(eager, prompt, BUDGET)
        for index in range(2):
            sample = samples[prompt.id, index]
            assert sample.token_ids == expected
            assert sample.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_greedy_equals_transformers_with_an_adapter(architecture):
    model = build(architecture)
    plain = run(make_engine(model), make_prompts(LENGTHS), 1, SamplingParams(BUDGET, temperature=0))
    wrapped = with_adapter(model)
    prompts = make_prompts(LENGTHS)
    samples = run(make_engine(wrapped), prompts, 1, SamplingParams(BUDGET, temperature=0))
    eager = eager_copy(wrapped.merge_and_unload())
    eager.generation_config.eos_token_id = None
    expected = [transformers_tokens(eager, prompt, BUDGET) for prompt in prompts]
    assert [samples[prompt.id, 0].token_ids for prompt in prompts] == expected
    assert [plain[prompt.id, 0].token_ids for prompt in prompts] != expected


def test_greedy_stops_where_transformers_stops():
    model = build("llama")
    eager = eager_copy(model)
    prompts = make_prompts(LENGTHS)
    free = run(make_engine(model), prompts, 1, SamplingParams(BUDGET, temperature=0))
    stop = {free[prompt.id, 0].token_ids[4 + prompt.id] for prompt in prompts[:3]}
    sampling = SamplingParams(BUDGET, temperature=0, stop_token_ids=frozenset(stop))
    samples = run(make_engine(model), prompts, 1, sampling)
    reasons = set()
    for prompt in prompts:
        sample = samples[prompt.id, 0]
        assert sample.token_ids == transformers_tokens(eager, prompt, BUDGET, stop)
        stopped = sample.token_ids[-1] in stop
        assert sample.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        reasons.add(sample.finish_reason)
    assert FinishReason.STOP in reasons
