"""What a training forward keeps for its backward, counted on the real module beside the plan's
formulas, and what the process holds for each byte of it.

Kept bytes are those of distinct storages that autograd saves, parameters apart. Forwards with two
and with all of the layers tell what a layer keeps from what the rest does.

    python benchmarks/plan_activations.py --method full
    python benchmarks/plan_activations.py --method lora
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from roost.bench.batches import random_groups, spread_lengths
from roost.bench.memory import kept_bytes
from roost.bench.tables import table
from roost.bench.training import build_trainer, run_config
from roost.planner import activations
from roost.planner.models import find_shape
from roost.run.ledger import peak_bytes, process_bytes, reset_peak
from roost.training.batch import TrainBatch
from roost.training.trainer import Trainer

CPU = torch.device("cpu")
PROMPT, COMPLETION = 45, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--method", choices=["full", "lora"], default="full")
    args = parser.parse_args()

    torch.set_num_threads(2)
    trainer, _ = build_trainer(run_config(args.model, args.method, COMPLETION))
    shape = find_shape(args.model).shape
    width = trainer.policy.dtype.itemsize
    planned = activations.layer_bytes(shape, width, full=args.method == "full")
    forward_backward(trainer, 2)  # Compiles the products and loads what comes with a first step.
    rows = []
    for generations in (4, 8, 12):
        tokens, kept, resident = forward_backward(trainer, generations)
        fewer = kept_by(trainer, generations, layers=2)
        layer = (kept - fewer) / (shape.layers - 2) / tokens
        rows.append(
            {
                "tokens": tokens,
                "a layer's bytes a token": round(layer),
                "planned": planned,
                "kept MiB": round(kept / 2**20),
                "resident / kept": resident / kept,
            }
        )
    print(table(rows))


def forward_backward(trainer: Trainer, generations: int) -> tuple[int, int, int]:
    """Tokens of a pack, bytes that its forward keeps, and the rise of resident memory with both."""
    kept = kept_by(trainer, generations)
    before = process_bytes(CPU)
    reset_peak(CPU)
    tokens, loss = score(trainer, generations)
    loss.backward()  # type: ignore[no-untyped-call]
    return tokens, kept, peak_bytes(CPU) - before


def kept_by(trainer: Trainer, generations: int, layers: int | None = None) -> int:
    """Bytes that a forward of one group keeps, with all layers or the first few."""
    return kept_bytes(trainer.policy, lambda: score(trainer, generations)[1], layers)


def score(trainer: Trainer, generations: int) -> tuple[int, Tensor]:
    """Tokens of one group's pack, and a loss of its log-probabilities."""
    vocabulary = trainer.policy.config.vocab_size
    groups = random_groups(1, PROMPT, spread_lengths(generations, COMPLETION), vocabulary)
    batch = TrainBatch.of(groups, trainer.config)
    [pack] = batch.packs(batch.samples, 1_000_000)
    trainer.policy.module.train()
    logprobs, _ = trainer.score(trainer.policy, pack)
    return len(pack), logprobs.sum()


if __name__ == "__main__":
    main()
