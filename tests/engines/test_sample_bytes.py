"""What the plan counts for finished samples, against what Python allocates for real ones."""

from __future__ import annotations

import gc
import tracemalloc

from engine_support import make_engine, make_prompts

from roost.engines.protocol import SamplingParams
from roost.planner.embedded_phases import SAMPLE_TOKEN_BYTES
from support.small_models import build

SAMPLES = 16


def held_by(tokens: int) -> int:
    """Bytes that Python holds for the samples of a call, and for what the engine keeps."""
    engine = make_engine(build("llama", vocab_size=2000))  # beyond the integers that Python shares
    prompts = make_prompts([9] * 4)
    # Of a truncated distribution each token has a kept mass of its own.
    sampling = SamplingParams(max_completion_tokens=tokens, top_p=0.9)
    list(engine.generate(prompts, 4, sampling, seed=0, step=0))  # what a first call loads
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        samples = list(engine.generate(prompts, 4, sampling, seed=1, step=1))
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert sum(len(sample.token_ids) for sample in samples) == SAMPLES * tokens
    return held


def test_a_token_takes_what_is_planned_less_its_text() -> None:
    of_a_token = (held_by(400) - held_by(200)) / (SAMPLES * 200)
    assert 0.6 * SAMPLE_TOKEN_BYTES < of_a_token < SAMPLE_TOKEN_BYTES
