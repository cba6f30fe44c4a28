"""What must hold at the moment that a run starts, beside what its recipe, model and data must."""

from __future__ import annotations

import os
from pathlib import Path

from roost.config import RunConfig
from roost.engines.vllm.server.hello import TokenRefused, hello
from roost.errors import ConfigError, EngineError
from roost.run.servers import named_servers
from roost.training.launched import check_tensor_parallel, world_size


def check_start(config: RunConfig, base_dir: Path) -> None:
    """Refuse a run whose processes or servers are not as it needs them, before anything is read.

    Args:
        config: The run.
        base_dir: Where relative paths start.

    Raises:
        ConfigError: naming the field, what was tried, and what to do.
    """
    check_processes(config)
    check_servers(config, base_dir)


def check_processes(config: RunConfig) -> None:
    """Refuse a number of processes that does not suit the engine.

    Without ``torchrun`` there is nothing to compare: whoever only checks a recipe may start it with
    ``torchrun`` later, and a run that needs several processes says so (``open_ranks``).

    Raises:
        ConfigError: servers are asked for in several; or they do not come out even.
    """
    world, rollout = world_size(), config.rollout
    if world > 1 and rollout.engine == "vllm" and rollout.mode == "server":
        raise ConfigError(
            f"rollout.mode = 'server' in {world} processes: servers take weights from one process "
            "so far. Set rollout.mode = 'colocate', or start Roost without torchrun."
        )
    if "WORLD_SIZE" in os.environ:
        check_tensor_parallel(rollout.ranks_per_engine)


def check_servers(config: RunConfig, base_dir: Path) -> None:
    """Ask each entry of ``rollout.servers`` whether it is there. None is attached to.

    Raises:
        ConfigError: an entry names no server, one that does not answer, or one twice.
    """
    met: dict[str, str] = {}
    for entry, address in named_servers(config.rollout, base_dir):
        try:
            known = hello(address)["id"]
        except EngineError as error:
            raise ConfigError(
                f"rollout.servers: {entry!r}: {error}. {_advice(entry, error)}"
            ) from error
        if known in met:
            raise ConfigError(
                f"rollout.servers: {entry!r} names the server {address.url}, which {met[known]!r} "
                "names too. Take one of them out: a server has one place in a run."
            )
        met[known] = entry


def _advice(entry: str, error: EngineError) -> str:
    is_url = "://" in entry
    if isinstance(error, TokenRefused):
        if is_url:
            return "Set rollout.token_file to the file that it was started with (--token-file)."
        return "The file is of another server: name the one that this server wrote."
    if is_url:
        return (
            "Correct it, or start one with `roost serve MODEL --address-file FILE` and name FILE "
            "here: a server has another port each time."
        )
    return f"Start it again with `roost serve MODEL --address-file {entry}`, which writes it anew."
