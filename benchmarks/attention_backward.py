"""The CPU kernel's attention backward in bfloat16 and in float32.

python benchmarks/attention_backward.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from roost.bench.tables import table
from roost.bench.timing import alternate

SHAPES = ((24, 128, 128, True), (72, 64, 64, True), (3, 608, 64, False), (24, 128, 256, False))
"""Sequences x key-value heads, rows, keys, causal: as packs of short completions have them."""
REPEAT, DIM = 3, 64
"""Query heads a key head, and their width, of SmolLM2-135M."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows: list[dict[str, object]] = []
    for batch, queries, keys, causal in SHAPES:
        seconds = alternate(
            {
                str(dtype): backward(batch, queries, keys, causal, dtype)
                for dtype in (torch.bfloat16, torch.float32)
            },
            args.rounds,
        )
        milliseconds = {name: 1e3 * value for name, value in seconds.items()}
        rows.append({"batch x rows x keys": f"{batch} x {queries} x {keys}", **milliseconds})
    print(table(rows))


def backward(
    batch: int, queries: int, keys: int, causal: bool, dtype: torch.dtype
) -> Callable[[], object]:
    """One call of the kernel on random tensors."""
    query = torch.randn(batch, REPEAT, queries, DIM, dtype=dtype)
    key, value = (
        torch.randn(batch, 1, keys, DIM, dtype=dtype).expand(-1, REPEAT, -1, -1) for _ in range(2)
    )
    scale = DIM**-0.5
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, scale=scale
    )
    gradient = torch.randn_like(output)
    return lambda: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, output, lse, 0.0, causal, scale=scale
    )


if __name__ == "__main__":
    main()
