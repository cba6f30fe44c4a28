"""The engine of a run: what is checked of it before loading, and how it is built."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from roost.config import RunConfig
from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import Engine
from roost.engines.vllm import check_version, installed_version
from roost.engines.vllm.port import (
    LORA_RANKS,
    Through,
    VllmSettings,
    directly,
    slot_rank,
)
from roost.errors import ConfigError
from roost.model.policy import Policy
from roost.run.servers import build_servers
from roost.samples import Prompt
from roost.training.parallel import ALONE, Ranks

if TYPE_CHECKING:
    from roost.run.prepare import Prepared

PROBE_TOKENS = 64
"""Tokens that engine and trainer both score after each sync."""


def check_engine(config: RunConfig, device: torch.device) -> None:
    """Say before anything is loaded what an engine cannot do here.

    Raises:
        EngineError: vLLM is not installed, or is of a version that Roost does not drive.
        ConfigError: it cannot sleep as asked, or the adapter is wider than it takes.
    """
    if config.rollout.engine == "embedded":
        return
    if config.rollout.mode == "colocate" or config.rollout.launch:
        check_version(installed_version())
    if config.rollout.sleep and device.type != "cuda":
        raise ConfigError(
            f"rollout.sleep = {config.rollout.sleep}: vLLM sleeps only on a GPU, and this run is "
            f"on {device.type}. Leave it out."
        )
    allocator = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if config.rollout.sleep and "expandable_segments:True" in allocator:
        raise ConfigError(
            f"rollout.sleep = {config.rollout.sleep}: vLLM's allocator, which lets it sleep, does "
            "not go with expandable_segments in PYTORCH_CUDA_ALLOC_CONF. Take that out, or set "
            "rollout.sleep = 0."
        )
    if config.train.method == "lora" and slot_rank(config.lora.rank) is None:
        raise ConfigError(
            f"lora.rank = {config.lora.rank}: vLLM takes adapters of rank {LORA_RANKS[-1]} at "
            "most; lower it, or set rollout.engine = 'embedded'."
        )


def build_engine(
    prepared: Prepared, policy: Policy, ranks: Ranks = ALONE, through: Through = directly
) -> Engine:
    """The rollout engine that the configuration names, or this rank's shard of it.

    Args:
        prepared: The run.
        policy: The model that is trained.
        ranks: The processes that train it.
        through: What is put around each vLLM, for tests of the sync.
    """
    if prepared.config.rollout.engine == "vllm":
        if prepared.config.rollout.mode == "server":
            return build_servers(prepared, policy, vllm_settings(prepared), through)
        return _build_vllm(prepared, policy, ranks, through)
    return EmbeddedEngine(
        policy,
        prepared.tokenizer,
        cache_bytes=prepared.plan.cache_bytes,
        max_sequences=prepared.config.rollout.max_sequences,
        keep_cache=prepared.plan.keeps_cache,
        pack_weights=prepared.plan.packs_weights,
    )


def _build_vllm(prepared: Prepared, policy: Policy, ranks: Ranks, through: Through) -> Engine:
    # Importing the adapter imports vLLM, which takes seconds and may not be installed.
    from roost.engines.vllm.adapter import VllmAdapter
    from roost.engines.vllm.engine import VllmEngine

    plan, settings = prepared.plan, _agreed(vllm_settings(prepared), ranks)
    everything = [*prepared.prompts.train, *prepared.prompts.held_out]
    return VllmEngine(
        policy,
        prepared.tokenizer,
        through(VllmAdapter(settings)),
        probe=probe_tokens(everything, settings.max_tokens - 1),
        cache_bytes=settings.cache_bytes,
        sleep_level=plan.sleep_level,
        ranks=ranks,
    )


def _agreed(settings: VllmSettings, ranks: Ranks) -> VllmSettings:
    """The settings of this rank's engine. Free memory, and so the plan, differs from rank to rank;
    shards of one engine must make room for the same samples, or they would take turns otherwise."""
    mine = settings.cache_bytes, settings.max_sequences
    cache, sequences = zip(*ranks.gather(mine, "the size of its cache"), strict=True)
    return replace(
        settings,
        cache_bytes=min(cache),
        max_sequences=min(sequences),
        tensor_parallel=ranks.tensor_parallel,
        launched=ranks.world > 1,
    )


def vllm_settings(prepared: Prepared) -> VllmSettings:
    """What vLLM is started with, from the plan."""
    config, source = prepared.config, prepared.source
    tokenizer = config.model.tokenizer or source.location
    lora = config.train.method == "lora"
    return VllmSettings(
        model=source.location,
        dtype=prepared.dtype,
        device=prepared.device.type,
        cache_bytes=prepared.plan.cache_bytes,
        max_tokens=prepared.prompts.report.longest + config.rollout.max_completion_tokens,
        max_sequences=prepared.plan.resident_rollouts,
        seed=config.seed,
        lora_rank=config.lora.rank if lora else None,
        revision=source.revision,
        tokenizer=tokenizer if config.rollout.stop else None,
        trust_remote_code=source.trust_remote_code,
        sleep_level=prepared.plan.sleep_level,
    )


def probe_tokens(prompts: Sequence[Prompt], most: int) -> list[int]:
    """The first tokens of the prompts, one after the other: text of the kind that is sampled.

    Args:
        prompts: Of the run.
        most: What a sequence may hold.
    """
    tokens = [token for prompt in prompts[:PROBE_TOKENS] for token in prompt.token_ids]
    return tokens[: min(PROBE_TOKENS, most)]
