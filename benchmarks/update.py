"""Seconds and peak memory of one update, with the micro-batch and recomputation that are asked for.

Each of two updates is printed, since the optimizer's moments come with the first; then the matrix
products of the same packs alone.

    python benchmarks/update.py --micro-batch 1024
    python benchmarks/update.py --micro-batch 2048 --recompute
    MALLOC_ARENA_MAX=8 python benchmarks/update.py      # glibc as it is: see roost.run.heap
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from roost.bench.batches import random_groups, spread_lengths
from roost.bench.products import Products
from roost.bench.training import build_trainer, pack_sizes, run_config
from roost.run.ledger import peak_bytes, reset_peak

CPU = torch.device("cpu")
PROMPT, COMPLETION, GENERATIONS = 45, 128, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--method", choices=["full", "lora"], default="full")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=1024)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    config = run_config(args.model, args.method, COMPLETION)
    train = config.train.model_copy(update={"gradient_checkpointing": args.recompute})
    trainer, _ = build_trainer(config.model_copy(update={"train": train}))
    trainer.micro_batch_tokens = args.micro_batch
    groups = random_groups(
        args.prompts,
        PROMPT,
        spread_lengths(GENERATIONS, COMPLETION),
        trainer.policy.config.vocab_size,
    )
    packs = pack_sizes(trainer, groups)
    print(f"packs of {', '.join(str(tokens) for tokens, _ in packs)} tokens")
    for number in (1, 2):
        print(f"update {number}: {measured(lambda: trainer.update(groups))}")
    products = Products.of(trainer.policy.module)
    print(f"products: {measured(lambda: products.train(packs))}")


def measured(work: Callable[[], object]) -> str:
    """Seconds by the clock and of all cores, and the most resident memory meanwhile."""
    reset_peak(CPU)
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return f"{wall:.1f} s, {cpu:.1f} CPU s, peak {peak_bytes(CPU) / 2**30:.2f} GiB"


if __name__ == "__main__":
    main()
