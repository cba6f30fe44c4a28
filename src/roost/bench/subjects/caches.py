"""Key-value caches of rivals that allocate theirs whole: as large as the job needs, no larger.

Left alone, transformers' continuous batching takes a share of all free memory, and vLLM likewise;
their peaks would say nothing about what the work needs.
"""

from __future__ import annotations

import os
from math import ceil
from typing import Any

from roost.bench.job import Job

PAGE_TOKENS = 256
"""transformers' own default."""
BATCH_TOKENS = 2048
"""Tokens of one forward: as many as Roost's prefill takes at most. transformers' attention mask is
this wide times the whole cache."""


def cache_blocks(job: Job) -> dict[str, int]:
    """Arguments of ``ContinuousBatchingConfig`` with room for all completions at once."""
    pages = ceil(job.sequence_tokens / PAGE_TOKENS)
    return {
        "page_size": PAGE_TOKENS,
        "num_blocks": pages * job.prompts * job.generations,
        "max_batch_tokens": BATCH_TOKENS,
    }


def cache_gib(job: Job, config: Any) -> int:
    """Whole GiB that hold the keys and values of all completions in 16 bits.

    Args:
        job: What is decoded.
        config: The model's transformers configuration.
    """
    heads: int = config.num_attention_heads
    width: int = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
    token: int = 2 * 2 * config.num_hidden_layers * kv_heads * width
    return ceil(token * job.sequence_tokens * job.prompts * job.generations / 2**30)


SPARE_BYTES = 4 * 2**30
"""What vLLM holds on a GPU beside weights and cache: its graphs, workspaces and activations."""


def vllm_share(job: Job, total_bytes: int) -> float:
    """The share of a GPU that vLLM needs for this job: weights in 16 bits, cache and its own.

    Args:
        job: What is decoded.
        total_bytes: The GPU's memory.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(job.model).get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = 2 * sum(parameter.numel() for parameter in model.parameters())
    needed = weights + cache_gib(job, config) * 2**30 + SPARE_BYTES
    return min(0.9, float(needed) / total_bytes)


def set_up_vllm(job: Job) -> dict[str, float]:
    """Prepare vLLM's import; returns ``gpu_memory_utilization`` where there is a GPU.

    Its CPU build reads the cache's size when it is imported. On a GPU it runs in this process,
    which is where memory is measured.
    """
    import torch
    from transformers import AutoConfig

    if torch.cuda.is_available():
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        total = torch.cuda.get_device_properties(0).total_memory
        return {"gpu_memory_utilization": vllm_share(job, total)}
    config = AutoConfig.from_pretrained(job.model).get_text_config()
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(cache_gib(job, config))
    return {}
