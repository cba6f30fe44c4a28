"""transformers' two ways to generate, on its own attention, in the precision that Roost uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from roost.bench.channel import Channel
from roost.bench.job import Job
from roost.bench.memory import PeakMemory
from roost.bench.subjects.caches import cache_blocks
from roost.bench.subjects.decoding import prompts_of_turns, turn_of, working_dtype
from roost.config.loading import build_config
from roost.model.loading import choose_device
from roost.samples import Prompt

Decode = Callable[[Any, Sequence[Prompt]], list[int]]
"""Lengths of the completions of some prompts."""


def serve(job: Job, channel: Channel) -> None:
    """``generate``: one batch, prompts padded on the left, the default cache."""

    def decode(model: Any, prompts: Sequence[Prompt]) -> list[int]:
        ids, mask = _padded(prompts, job.generations, model.device)
        output = model.generate(
            input_ids=ids, attention_mask=mask, generation_config=_sampling(job)
        )
        return [output.shape[1] - ids.shape[1]] * len(output)

    _serve(job, channel, decode, {"cache": "default", "attention": "sdpa"})


def serve_continuous(job: Job, channel: Channel) -> None:
    """``generate_batch``: continuous batching, its cache as large as the job needs."""
    from transformers.generation import ContinuousBatchingConfig

    blocks = cache_blocks(job)

    def decode(model: Any, prompts: Sequence[Prompt]) -> list[int]:
        copies = [list(p.token_ids) for p in prompts for _ in range(job.generations)]
        outputs = model.generate_batch(
            copies,
            generation_config=_sampling(job),
            continuous_batching_config=ContinuousBatchingConfig(**blocks),
            progress_bar=False,
        )
        return [len(output.generated_tokens) for output in outputs.values()]

    _serve(job, channel, decode, dict(blocks))


def _serve(job: Job, channel: Channel, decode: Decode, more: dict[str, Any]) -> None:
    model = _load(job)
    memory = PeakMemory(model.device)
    batches = prompts_of_turns(job, AutoTokenizer.from_pretrained(job.model))
    channel.ready(
        {
            "weights": str(model.dtype).removeprefix("torch."),
            "device": model.device.type,
            "temperature": 1.0,
            "threads": torch.get_num_threads(),
            **more,
        }
    )
    for step, _ in enumerate(channel.goes()):
        start = time.perf_counter()
        lengths = decode(model, batches[step])
        channel.report(turn_of(lengths, time.perf_counter() - start, job, memory))


def _load(job: Job) -> Any:
    dtype = working_dtype(job.model)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype).eval()
    # Nothing stops early: every completion has the length that was asked for.
    model.generation_config.eos_token_id = None
    return model.to(choose_device(build_config({"model": job.model}).model))


def _sampling(job: Job) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=job.completion_tokens,
        pad_token_id=0,
    )


def _padded(
    prompts: Sequence[Prompt], generations: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask ``[prompts * generations, longest]``, a row for each completion."""
    longest = max(len(prompt.token_ids) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
        mask[row, longest - len(prompt.token_ids) :] = 1
    return (
        ids.repeat_interleave(generations, dim=0).to(device),
        mask.repeat_interleave(generations, dim=0).to(device),
    )
