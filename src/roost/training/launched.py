"""The processes that ``torchrun`` started: how many, which GPU each takes, and how they meet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from roost.errors import ConfigError
from roost.training.parallel import ALONE, WAIT_S, Ranks


def world_size() -> int:
    """Processes that ``torchrun`` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_leader() -> bool:
    """Whether this process may speak, asked before the process group is open."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def open_ranks(device: str, wait_s: float = WAIT_S, *, tensor_parallel: int = 1) -> Iterator[Ranks]:
    """The ranks that ``torchrun`` started; within ``with``, an error on one ends all.

    Args:
        device: ``model.device``.
        wait_s: Deadline of every wait.
        tensor_parallel: Ranks that hold one rollout engine together.

    Raises:
        ConfigError: there are more processes than GPUs, or ``tensor_parallel`` does not divide
            their number.
        RankFailed: a rank did not come.
    """
    check_tensor_parallel(tensor_parallel)
    if world_size() == 1:
        yield ALONE
        return
    rank, world = int(os.environ["RANK"]), world_size()
    cuda = device != "cpu" and torch.cuda.is_available()
    if cuda:
        _take_gpu()
    wait = timedelta(seconds=wait_s)
    store, _, _ = next(iter(rendezvous("env://", rank, world, timeout=wait)))
    ranks = Ranks(rank, world, PrefixStore("roost", store), wait_s, tensor_parallel=tensor_parallel)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=PrefixStore("torch", store),
        rank=rank,
        world_size=world,
        timeout=wait,
    )
    try:
        yield ranks
    except BaseException as error:
        # The group is left as it is: closing it could wait for a rank that is gone.
        ranks.fail(error)
        raise
    # A vLLM that was closed has taken it along.
    if dist.is_initialized():
        dist.destroy_process_group()


def check_tensor_parallel(count: int) -> None:
    """Refuse engines of so many ranks where the ranks do not come out even.

    Raises:
        ConfigError: with what is possible.
    """
    world = world_size()
    if world % count:
        fitting = ", ".join(str(size) for size in range(1, world + 1) if world % size == 0)
        raise ConfigError(
            f"rollout.tensor_parallel = {count}: each engine takes {count} processes, and there "
            f"{'is' if world == 1 else 'are'} {world}. Set it to one of {fitting}, or start a "
            f"multiple of {count} with torchrun --nproc-per-node."
        )


def _take_gpu() -> None:
    local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= count:
        raise ConfigError(
            f"torchrun started {os.environ.get('LOCAL_WORLD_SIZE')} processes and this machine "
            f"has {count} GPUs. Start at most {count} with --nproc-per-node, or set "
            "model.device = 'cpu'."
        )
    torch.cuda.set_device(local)
