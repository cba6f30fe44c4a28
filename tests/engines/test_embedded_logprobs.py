"""Sampled tokens carry the log-probability they were drawn with, checked by a plain forward."""

from __future__ import annotations

import math

import pytest
import torch
from engine_support import close, completion_logits, make_engine, make_prompts, run

from roost.engines.protocol import SamplingParams
from support.small_models import ARCHITECTURES, build, eager_copy, with_adapter

PROMPTS = make_prompts((5, 1, 13, 8))


def full_logprobs(logits, sample, temperature):
    """Log-probabilities of a sample's tokens over the full vocabulary."""
    scores = torch.log_softmax(logits / temperature, dim=-1)
    return scores.gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_logprobs_equal_a_plain_forward(architecture, temperature):
    model = build(architecture)
    eager = eager_copy(model)
    samples = run(make_engine(model), PROMPTS, 3, SamplingParams(20, temperature=temperature))
    for prompt in PROMPTS:
        for index in range(3):
            sample = samples[prompt.id, index]
            expected = full_logprobs(completion_logits(eager, prompt, sample), sample, temperature)
            assert close(sample.logprobs, expected)
            assert sample.kept_mass_logs == [0.0] * len(sample.token_ids)


def test_logprobs_with_an_adapter_are_the_adapted_models():
    model = with_adapter(build("qwen3"))
    samples = run(make_engine(model), PROMPTS, 2, SamplingParams(12))
    eager = eager_copy(model.merge_and_unload())
    for prompt in PROMPTS:
        sample = samples[prompt.id, 1]
        expected = full_logprobs(completion_logits(eager, prompt, sample), sample, 1.0)
        assert close(sample.logprobs, expected)


@pytest.mark.parametrize(
    "truncation",
    [
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 1.4},
    ],
)
def test_truncated_logprobs_renormalise_the_kept_tokens(truncation):
    model = build("llama")
    eager = eager_copy(model)
    sampling = SamplingParams(16, **truncation)
    samples = run(make_engine(model), PROMPTS, 2, sampling)
    assert any(log < -0.01 for s in samples.values() for log in s.kept_mass_logs)
    for prompt in PROMPTS:
        sample = samples[prompt.id, 0]
        logits = completion_logits(eager, prompt, sample)
        expected = full_logprobs(logits, sample, sampling.temperature)
        assert close(sample.full_logprobs, expected)
        assert all(log <= 1e-6 for log in sample.logprobs)


def test_greedy_logprobs_are_those_of_temperature_one():
    model = build("mistral")
    eager = eager_copy(model)
    samples = run(make_engine(model), PROMPTS, 1, SamplingParams(16, temperature=0, top_k=3))
    for prompt in PROMPTS:
        sample = samples[prompt.id, 0]
        logits = completion_logits(eager, prompt, sample)
        assert sample.token_ids == logits.argmax(-1).tolist()
        assert close(sample.logprobs, full_logprobs(logits, sample, 1.0))


def test_bfloat16_stays_near_the_plain_forward():
    """The on-policy law's bound for bfloat16: mean absolute difference below 0.02."""
    model = build("llama", dtype=torch.bfloat16, hidden_size=96)
    eager = eager_copy(model)
    samples = run(make_engine(model), PROMPTS, 4, SamplingParams(40))
    differences = []
    for prompt in PROMPTS:
        for index in range(4):
            sample = samples[prompt.id, index]
            expected = full_logprobs(completion_logits(eager, prompt, sample), sample, 1.0)
            differences += (torch.tensor(sample.logprobs) - expected).abs().tolist()
    assert math.fsum(differences) / len(differences) < 0.02
