"""The servers of a run with ``rollout.mode = "server"``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from roost.config import RolloutConfig
from roost.engines.vllm.client import RemotePort
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.fleet import ServerEngine
from roost.engines.vllm.member import Member
from roost.engines.vllm.places import KnownPlace, LaunchedPlace, Place
from roost.engines.vllm.port import Through, VllmSettings, directly
from roost.engines.vllm.server.addresses import Address, read_addresses, read_token
from roost.errors import ConfigError, EngineError
from roost.model.policy import Policy

if TYPE_CHECKING:
    from roost.run.prepare import Prepared


def build_servers(
    prepared: Prepared, policy: Policy, settings: VllmSettings, through: Through = directly
) -> ServerEngine:
    """Connect to the servers that the configuration names, or start them.

    Args:
        prepared: The run.
        policy: The model that is trained.
        settings: What a server of its own is started with; others must not be smaller.
        through: What is put around each connection, for tests of the sync.

    Raises:
        EngineError: one is not there, or does not fit the run.
        ConfigError: an entry of ``rollout.servers`` names none.
    """
    from roost.run.engines import probe_tokens

    prompts = [*prepared.prompts.train, *prepared.prompts.held_out]
    probe = probe_tokens(prompts, settings.max_tokens - 1)

    def make_engine(port: RemotePort) -> VllmEngine:
        _check_fits(port, settings)
        cache_bytes = port.cache_bytes
        return VllmEngine(policy, None, through(port), probe=probe, cache_bytes=cache_bytes)

    members = [Member(place, make_engine) for place in _places(prepared, settings)]
    patience = prepared.config.rollout.patience_s
    return ServerEngine(policy, prepared.tokenizer, members, patience_s=patience)


def _places(prepared: Prepared, settings: VllmSettings) -> Iterator[Place]:
    rollout = prepared.config.rollout
    if rollout.launch:
        for number in range(rollout.replicas):
            shards = replace(settings, tensor_parallel=rollout.tensor_parallel)
            yield LaunchedPlace(shards, _cards(number, rollout.tensor_parallel, settings.device))
        return
    token = _token(rollout, prepared.base_dir)
    for entry in rollout.servers:
        located = _located(entry, prepared.base_dir)
        for index in range(len(read_addresses(located, token))):
            yield KnownPlace(located, index, token)


def named_servers(rollout: RolloutConfig, base_dir: Path) -> Iterator[tuple[str, Address]]:
    """Each server of ``rollout.servers``, behind the entry that names it.

    Raises:
        ConfigError: an entry names none, or ``rollout.token_file`` holds no secret.
    """
    token = _token(rollout, base_dir) if rollout.servers else None
    for entry in rollout.servers:
        for address in read_addresses(_located(entry, base_dir), token):
            yield entry, address


def _token(rollout: RolloutConfig, base_dir: Path) -> str | None:
    file = rollout.token_file
    return read_token(None if file is None else str(base_dir / Path(file).expanduser()))


def _located(entry: str, base_dir: Path) -> str:
    return entry if "://" in entry else str(base_dir / Path(entry).expanduser())


def _cards(number: int, count: int, device: str) -> Sequence[int] | None:
    """Cards of a server. The trainer has card 0; where there is no other, both share it."""
    if device != "cuda":
        return None
    others = torch.cuda.device_count() - 1
    if count > max(1, others):
        raise ConfigError(
            f"rollout.tensor_parallel = {count}: a server needs as many cards, and beside the "
            f"trainer's there are {others}. Lower it, or start the run where there are more."
        )
    first = number * count
    return [1 + (first + i) % others for i in range(count)] if others else [0]


def _check_fits(port: RemotePort, settings: VllmSettings) -> None:
    if port.max_tokens < settings.max_tokens:
        raise EngineError(
            f"{port} takes sequences of {port.max_tokens} tokens, this run has some of "
            f"{settings.max_tokens}: start it with --max-tokens {settings.max_tokens}, or lower "
            "rollout.max_completion_tokens."
        )
    if port.lora_rank != settings.lora_rank:
        wanted = settings.lora_rank
        how = f"with --lora-rank {wanted}" if wanted else "without --lora-rank"
        raise EngineError(
            f"{port} was started for adapters of rank {port.lora_rank}, this run trains "
            f"{f'one of rank {wanted}' if wanted else 'all weights'}: start it {how}."
        )
