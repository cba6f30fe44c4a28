"""Roost's embedded engine alone; nothing stops early, so all decode as many tokens."""

from __future__ import annotations

import time

from roost.bench.channel import Channel
from roost.bench.job import Job
from roost.bench.memory import PeakMemory
from roost.bench.subjects.decoding import prompts_of_turns, turn_of
from roost.config.loading import build_config
from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import SamplingParams
from roost.model.loading import load_policy
from roost.run import heap

CACHE_BYTES = 2**32
"""A bound; the engine allocates what the job needs."""


def serve(job: Job, channel: Channel) -> None:
    """Decode all completions a turn."""
    heap.set_up()
    policy, tokenizer = load_policy(build_config({"model": job.model}).model)
    # A run on a GPU keeps its cache and what it has recorded where they fit.
    keep = policy.device.type == "cuda"
    engine = EmbeddedEngine(policy, tokenizer, cache_bytes=CACHE_BYTES, keep_cache=keep)
    memory = PeakMemory(policy.device)
    sampling = SamplingParams(max_completion_tokens=job.completion_tokens)
    batches = prompts_of_turns(job, tokenizer)
    channel.ready(
        {
            "weights": str(policy.dtype).removeprefix("torch."),
            "device": policy.device.type,
            "decoding": engine.decoding.choice.reason,
            "temperature": sampling.temperature,
            "threads": job.threads,
        }
    )
    for step, _ in enumerate(channel.goes()):
        start = time.perf_counter()
        samples = list(engine.generate(batches[step], job.generations, sampling, seed=0, step=step))
        seconds = time.perf_counter() - start
        channel.report(turn_of([len(s.token_ids) for s in samples], seconds, job, memory))
