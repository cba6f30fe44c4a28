"""``python -m roost.doctor.probes.peers [KIND COUNT MEGABYTES]``: copies between each ordered pair
of cards.

Says each pair before it is tried, so that a copy that hangs is known by its last line. The kind
``cpu`` goes the same way where there are no cards, for tests.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from roost.doctor.probes.saying import say

if TYPE_CHECKING:
    import torch

CHECKED = 1 << 22
"""Elements compared on the host: 16 MiB, as all would take longer than the copies."""
REPEATS = 4


def main(kind: str = "cuda", count: int | None = None, megabytes: int = 256) -> None:
    """Try all pairs; by default of all cards that this process may see."""
    import torch

    cards = torch.cuda.device_count() if count is None else count
    for source in range(cards):
        elements = megabytes * 2**20 // 4
        sent = torch.arange(elements, dtype=torch.int32, device=f"{kind}:{source}")
        for target in range(cards):
            if source != target:
                _pair(sent, source, target)


def _pair(sent: torch.Tensor, source: int, target: int) -> None:
    import torch

    cuda = sent.is_cuda
    access = bool(torch.cuda.can_device_access_peer(source, target)) if cuda else True
    pair = {"from": source, "to": target, "access": access}
    say(**pair)
    received = torch.zeros_like(sent, device=f"{sent.device.type}:{target}")
    received.copy_(sent)
    _wait(cuda, source, target)
    right = torch.equal(received[:CHECKED].cpu(), sent[:CHECKED].cpu())
    begin = time.perf_counter()
    for _ in range(REPEATS):
        received.copy_(sent, non_blocking=True)
    _wait(cuda, source, target)
    seconds = time.perf_counter() - begin
    say(**pair, right=right, gbps=REPEATS * sent.nbytes / seconds / 1e9)


def _wait(cuda: bool, *devices: int) -> None:
    import torch

    for device in devices if cuda else ():
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
