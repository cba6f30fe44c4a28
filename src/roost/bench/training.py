"""``roost bench train``: Roost's training step beside a padded one and the floor, in one process.

All three work on the same completions. A step of Roost and of the padded trainer is all of it:
forward, backward, clipping, the optimizer. The floor is the matrix products of one forward and one
backward alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from roost.bench.batches import random_groups, spread_lengths
from roost.bench.job import LORA_ALPHA, LORA_RANK, Workload
from roost.bench.padded import PaddedTrainer
from roost.bench.products import Products
from roost.bench.rivals import FLOOR, ROOST
from roost.bench.tables import table
from roost.bench.timing import alternate
from roost.config import RunConfig
from roost.config.loading import build_config
from roost.model.loading import load_policy
from roost.model.source import find_model
from roost.planner.embedded_choice import MICRO_BATCH_TOKENS
from roost.run import heap
from roost.samples import Group
from roost.training.adapters import add_adapter
from roost.training.batch import TrainBatch
from roost.training.trainer import Trainer

PADDED = "padded"


def build_trainer(config: RunConfig) -> tuple[Trainer, Any]:
    """Roost's trainer on a model, with its adapter where the run trains one; and its tokenizer."""
    heap.set_up()
    policy, tokenizer = load_policy(config.model)
    if config.train.method == "lora":
        policy = type(policy)(add_adapter(policy.module, config.lora, seed=config.seed))
    tokens = MICRO_BATCH_TOKENS[policy.device.type]
    return Trainer(policy, config, micro_batch_tokens=tokens), tokenizer


def run_config(model: str, method: str, budget: int) -> RunConfig:
    """A run with Roost's defaults, but for what is measured."""
    return build_config(
        {
            "model": model,
            "train": {"method": method},
            "lora": {"rank": LORA_RANK, "alpha": LORA_ALPHA},
            "rollout": {"max_completion_tokens": budget},
        }
    )


def measure(
    model: str, method: str, workload: Workload, rounds: int, threads: int
) -> dict[str, Any]:
    """Train in turns.

    Returns:
        ``rows`` with ``step_s`` and ``trained_tokens_per_s`` of each; ``ratios`` of the padded
        step; ``floor_share``, the floor's time as a share of Roost's.
    """
    torch.set_num_threads(threads)
    config = run_config(model, method, workload.completion_tokens)
    trainer, _ = build_trainer(config)
    policy = trainer.policy
    groups = random_groups(
        workload.prompts,
        workload.prompt_tokens,
        spread_lengths(workload.generations, workload.completion_tokens),
        policy.config.vocab_size,
    )
    location = find_model(config.model).location
    rival = PaddedTrainer(location, config, policy.dtype, policy.device)
    products, packs = Products.of(policy.module), pack_sizes(trainer, groups)
    seconds = alternate(
        {
            ROOST: lambda: trainer.update(groups),
            PADDED: lambda: rival.update(groups),
            FLOOR: lambda: products.train(packs),
        },
        rounds,
    )
    tokens = sum(len(sample.token_ids) for group in groups for sample in group.samples)
    rows = [
        {
            "name": name,
            "step_s": value,
            "trained_tokens_per_s": tokens / value,
            "floor_share": seconds[FLOOR] / value,
        }
        for name, value in seconds.items()
    ]
    return {
        "kind": "train",
        "model": model,
        "method": method,
        "completion_tokens": tokens,
        "computed_tokens": sum(size for size, _ in packs),
        "threads": threads,
        "steps": rounds,
        "rows": rows,
        "ratios": {PADDED: {"step": seconds[PADDED] / seconds[ROOST]}},
        "floor_share": seconds[FLOOR] / seconds[ROOST],
    }


def pack_sizes(trainer: Trainer, groups: Sequence[Group]) -> list[tuple[int, int]]:
    """Of each forward in a step of Roost's: its tokens, and how many of them the head scores."""
    batch = TrainBatch.of(groups, trainer.config)
    packs = batch.packs(batch.samples, trainer.micro_batch_tokens)
    sizes = [(len(pack), len(pack.targets)) for pack in packs]
    divided = {pack.divided for pack in packs if pack.divided is not None}
    # A divided group's prompt has a forward of its own; its last state is scored with the pieces.
    return sizes + [(len(groups[group].prompt.token_ids), 0) for group in sorted(divided)]


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """The measurement for a person."""
    rows = [
        {
            "what": row["name"],
            "step s": row["step_s"],
            "trained tokens/s": round(row["trained_tokens_per_s"]),
            "share of the floor": row["floor_share"],
        }
        for row in result["rows"]
    ]
    return [
        f"{result['model']}, {result['method']} training: {result['completion_tokens']} completion "
        f"tokens, {result['computed_tokens']} computed; medians of {result['steps']} steps in "
        f"turns, {result['threads']} threads",
        "",
        table(rows),
        "",
        f"padded takes {result['ratios'][PADDED]['step']:.2f} times as long as Roost; "
        f"Roost's share of the floor: {result['floor_share']:.0%}",
    ]
