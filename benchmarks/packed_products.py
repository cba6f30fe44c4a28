"""What packed weights give: one linear by rows, and a whole decoding with and without, in turns.

python benchmarks/packed_products.py
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from roost.bench.tables import table
from roost.config.loading import build_config
from roost.engines.embedded import EmbeddedEngine
from roost.engines.embedded.packed_products import packed_products
from roost.engines.protocol import SamplingParams
from roost.model.loading import load_policy
from roost.model.policy import Policy
from roost.run import heap
from roost.samples import Prompt

WEIGHTS = 20
"""As many weights in turn as caches do not hold."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    heap.set_up()
    torch.set_num_threads(args.threads)
    print(table([by_rows(rows) for rows in (1, 4, 16, 64, 256)]))
    policy, _ = load_policy(build_config({"model": args.model}).model)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(args.rounds):
        for packed, taken in seconds.items():
            taken.append(cpu_seconds(lambda packed=packed: decode(policy, packed)))  # type: ignore[misc]
    plain, packed = (median(seconds[which]) for which in (False, True))
    print(f"64 x 128 tokens: plain {plain:.1f} CPU s, packed {packed:.1f}")


@torch.inference_mode()
def by_rows(rows: int) -> dict[str, float]:
    """Microseconds of one product, 576 to 1,536."""
    net = nn.ModuleList(nn.Linear(576, 1536, bias=False) for _ in range(WEIGHTS)).bfloat16()
    hidden = torch.randn(rows, 576, dtype=torch.bfloat16)

    def products() -> None:
        for linear in net:
            linear(hidden)

    plain = median(cpu_seconds(products) for _ in range(15))
    with packed_products(net):
        packed = median(cpu_seconds(products) for _ in range(15))
    scale = 1e6 / WEIGHTS
    return {"rows": rows, "plain, us": round(plain * scale), "packed, us": round(packed * scale)}


def decode(policy: Policy, packed: bool) -> None:
    """Samples that nothing stops."""
    rng = random.Random(0)
    prompts = [Prompt(i, tuple(rng.randrange(40_000) for _ in range(45)), "") for i in range(8)]
    engine = EmbeddedEngine(policy, None, cache_bytes=2**31, pack_weights=packed)
    list(engine.generate(prompts, 8, SamplingParams(128), seed=0, step=0))


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of all cores."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
