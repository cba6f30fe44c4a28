"""The floor of generation: the same matrix products alone, on the weights that Roost decodes."""

from __future__ import annotations

import time

import torch

from roost.bench.channel import Channel
from roost.bench.job import Job
from roost.bench.memory import PeakMemory
from roost.bench.products import Products
from roost.bench.subjects.decoding import prompts_of_turns, turn_of
from roost.config.loading import build_config
from roost.model.loading import load_policy


def serve(job: Job, channel: Channel) -> None:
    """Compute the products of all completions a turn."""
    policy, tokenizer = load_policy(build_config({"model": job.model}).model)
    products, memory = Products.of(policy.module), PeakMemory(policy.device)
    batches = prompts_of_turns(job, tokenizer)
    channel.ready(
        {
            "weights": str(policy.dtype).removeprefix("torch."),
            "device": policy.device.type,
            "threads": job.threads,
        }
    )
    for step, _ in enumerate(channel.goes()):
        prompts = [len(prompt.token_ids) for prompt in batches[step]]
        start = time.perf_counter()
        products.decode(prompts, job.generations, job.completion_tokens)
        if policy.device.type == "cuda":
            torch.cuda.synchronize()
        lengths = [job.completion_tokens] * (job.prompts * job.generations)
        channel.report(turn_of(lengths, time.perf_counter() - start, job, memory))
