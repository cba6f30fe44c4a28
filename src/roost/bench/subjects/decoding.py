"""What all contenders in generation share: the prompts of each turn, and the check of a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from roost.bench.job import Job
from roost.bench.memory import PeakMemory
from roost.bench.prompts import Prompter, read_rows
from roost.bench.turns import Turn
from roost.config.loading import build_config
from roost.errors import EngineError
from roost.model.loading import choose_dtype
from roost.samples import Prompt


def prompts_of_turns(job: Job, tokenizer: Any) -> list[list[Prompt]]:
    """For each turn, other prompts: a cache of prefixes must not help one turn with another's."""
    prompts = Prompter(tokenizer).encode(read_rows(job.rows))
    size = job.prompts
    return [prompts[size * turn : size * (turn + 1)] for turn in range(job.turns)]


def working_dtype(model: str) -> torch.dtype:
    """The precision that Roost decodes a model in, which all decode it in."""
    config = build_config({"model": model}).model
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    return choose_dtype(config, sum(parameter.numel() for parameter in shape.parameters()))


def turn_of(lengths: Sequence[int], seconds: float, job: Job, memory: PeakMemory) -> Turn:
    """A turn that only generated.

    Args:
        lengths: Tokens of each completion.
        seconds: What it took.
        job: What was asked.
        memory: Looked at now.

    Raises:
        EngineError: it is not as many completions of that length as were asked for.
    """
    wanted = [job.completion_tokens] * (job.prompts * job.generations)
    if list(lengths) != wanted:
        raise EngineError(
            f"{job.name} gave {len(lengths)} completions of {min(lengths, default=0)} to "
            f"{max(lengths, default=0)} tokens where {len(wanted)} of {job.completion_tokens} were "
            "asked for; its time would not be comparable."
        )
    return Turn(
        step_s=seconds,
        generate_s=seconds,
        reward_s=0.0,
        train_s=0.0,
        generated_tokens=sum(lengths),
        trained_tokens=0,
        completions=len(lengths),
        peak_bytes=memory.note(),
    )
