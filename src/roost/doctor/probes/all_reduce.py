"""``python -m roost.doctor.probes.all_reduce BACKEND RANK WORLD FILE MEGABYTES``: one rank of an
all-reduce.

Says each stage that it reaches, so that a hang is known by the last one. The ranks meet through a
file, so no port can be taken.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from roost.doctor.probes.saying import say

GIVE_UP = timedelta(minutes=10)
"""Beyond any deadline of the doctor's, which says more than torch does."""
REPEATS = 5


def main(backend: str, rank: int, world: int, meeting: str, megabytes: int) -> None:
    """Join, add up, check the sum, and time it."""
    import torch
    from torch import distributed

    say(stage="started")
    cuda = backend == "nccl"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=world,
        timeout=GIVE_UP,
        device_id=device if cuda else None,
    )
    say(stage="joined")
    values = torch.full((megabytes * 2**20 // 4,), float(rank + 1), device=device)
    distributed.all_reduce(values)
    right = bool((values == world * (world + 1) / 2).all())
    say(stage="summed", right=right)
    gbps = _rate(torch.zeros_like(values), world)
    say(stage="done", right=right, gbps=gbps)
    distributed.destroy_process_group()


def _rate(values: object, world: int) -> float:
    """Bytes that each link carries, 1e9 a second: nccl-tests' bus bandwidth, 2(n-1)/n of the
    payload over the time."""
    import torch
    from torch import distributed

    assert isinstance(values, torch.Tensor)
    _wait(values)
    begin = time.perf_counter()
    for _ in range(REPEATS):
        distributed.all_reduce(values)
    _wait(values)
    seconds = (time.perf_counter() - begin) / REPEATS
    return 2 * (world - 1) / world * values.numel() * values.element_size() / seconds / 1e9


def _wait(values: object) -> None:
    import torch

    assert isinstance(values, torch.Tensor)
    if values.is_cuda:
        torch.cuda.synchronize(values.device)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
