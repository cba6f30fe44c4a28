"""``python -m roost.doctor.probes.peers``: copies between each ordered pair of cards.

Says each pair before it is tried, so that a copy that hangs is known by its last line.
"""

from __future__ import annotations

import time

from roost.doctor.probes.saying import say

MEGABYTES = 256
CHECKED = 1 << 22
"""Elements compared on the host: 16 MiB, as all would take longer than the copies."""
REPEATS = 4


def main() -> None:
    """Try all pairs that this process may see."""
    import torch

    count = torch.cuda.device_count()
    elements = MEGABYTES * 2**20 // 4
    for source in range(count):
        sent = torch.arange(elements, dtype=torch.int32, device=f"cuda:{source}")
        for target in range(count):
            if source != target:
                _pair(sent, source, target)


def _pair(sent: object, source: int, target: int) -> None:
    import torch

    assert isinstance(sent, torch.Tensor)
    access = bool(torch.cuda.can_device_access_peer(source, target))
    say(**{"from": source, "to": target, "access": access})
    received = torch.zeros_like(sent, device=f"cuda:{target}")
    received.copy_(sent)
    _wait(source, target)
    right = torch.equal(received[:CHECKED].cpu(), sent[:CHECKED].cpu())
    begin = time.perf_counter()
    for _ in range(REPEATS):
        received.copy_(sent, non_blocking=True)
    _wait(source, target)
    seconds = time.perf_counter() - begin
    gbps = REPEATS * sent.numel() * sent.element_size() / seconds / 1e9
    say(**{"from": source, "to": target, "access": access, "right": right, "gbps": gbps})


def _wait(*devices: int) -> None:
    import torch

    for device in devices:
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
