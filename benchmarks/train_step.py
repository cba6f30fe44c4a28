"""Seconds of a training step: Roost's packs beside a padded forward and backward.

Both compute the gradient of the same loss (DAPO, on-policy) over the same 64 completions of 8
prompts with the same weights and recompute activations in the backward. The padded one is what
trainers do that pad: each completion with its prompt is a row, rows are padded to the longest of
their micro-batch, logits are taken for completion tokens only. Its rows are sorted by length
first, which keeps its padding low, and its micro-batch is ``--rows`` rows.

    python benchmarks/train_step.py --method full --prompt 47 --completion 128
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from typing import Any

import torch
from timing import alternate, table
from transformers import AutoModelForCausalLM

from roost.config.loading import build_config
from roost.model.loading import load_policy
from roost.samples import FinishReason, Group, Prompt, Sample, TokenSource
from roost.training.adapters import add_adapter
from roost.training.batch import TrainBatch
from roost.training.trainer import Trainer

PROMPTS, GENERATIONS = 8, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--method", choices=["full", "lora"], default="full")
    parser.add_argument("--prompt", type=int, default=47, help="tokens of each prompt")
    parser.add_argument("--completion", type=int, default=128, help="most tokens of a completion")
    parser.add_argument("--rows", type=int, default=8, help="rows of a padded micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    groups = random_groups(args.prompt, args.completion)
    trainer = roost_trainer(args.model, args.method)
    batch = TrainBatch.of(groups, trainer.config)
    rival = padded_model(args.model, args.method)

    def packed() -> None:
        trainer.optimizer.zero_grad()
        trainer.accumulate(batch, batch.parts[0], defaultdict(float))

    seconds = alternate(
        {
            "Roost, packed": packed,
            "padded": lambda: padded(rival, groups, args.rows),
        },
        args.rounds,
    )
    tokens = sum(len(sample.token_ids) for group in groups for sample in group.samples)
    rows: list[dict[str, object]] = [
        {
            "what": name,
            "seconds": value,
            "completion tokens/s": round(tokens / value),
            "time against Roost": value / seconds["Roost, packed"],
        }
        for name, value in seconds.items()
    ]
    print(json.dumps(rows) if args.json else table(rows))


def random_groups(prompt: int, completion: int) -> list[Group]:
    """Random tokens; lengths spread evenly from an eighth of the budget to all of it."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(100, 40_000) for _ in range(count)]

    return [
        Group(
            Prompt(number, tuple(tokens(prompt)), "prompt"),
            [_sample(rng, number, index, tokens, completion) for index in range(GENERATIONS)],
        )
        for number in range(PROMPTS)
    ]


def _sample(rng: random.Random, prompt: int, index: int, tokens: Any, budget: int) -> Sample:
    count = rng.randint(budget // 8, budget)
    return Sample(
        prompt_id=prompt,
        index=index,
        token_ids=tokens(count),
        logprobs=[-1.0] * count,
        kept_mass_logs=[0.0] * count,
        finish_reason=FinishReason.STOP,
        policy_versions=[0] * count,
        sources=[TokenSource.MODEL] * count,
        reward=0.0,
        advantage=rng.uniform(-2, 2),
    )


def roost_trainer(model: str, method: str) -> Trainer:
    config = build_config({"model": model, "train": {"method": method}})
    policy, _ = load_policy(config.model)
    if method == "lora":
        policy = type(policy)(add_adapter(policy.module, config.lora, seed=0))
    return Trainer(policy, config, micro_batch_tokens=8192)


def padded_model(model: str, method: str) -> Any:
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if method == "lora":
        module = add_adapter(module, build_config({}).lora, seed=0)
    module.train()
    return module


def padded(model: Any, groups: list[Group], rows: int) -> None:
    model.zero_grad()
    pairs = [(group.prompt.token_ids, sample) for group in groups for sample in group.samples]
    pairs.sort(key=lambda pair: len(pair[1].token_ids))
    total = sum(len(sample.token_ids) for _, sample in pairs)
    for start in range(0, len(pairs), rows):
        _padded_micro_batch(model, pairs[start : start + rows], total)


def _padded_micro_batch(model: Any, pairs: list[Any], total: int) -> None:
    """Prompts here are of one length, so padding on the right is all that there is."""
    width = max(len(sample.token_ids) for _, sample in pairs)
    completions = torch.zeros(len(pairs), width, dtype=torch.int64)
    mask = torch.zeros(len(pairs), width)
    for row, (_, sample) in enumerate(pairs):
        count = len(sample.token_ids)
        completions[row, :count] = torch.tensor(sample.token_ids)
        mask[row, :count] = 1.0
    prompts = torch.tensor([prompt for prompt, _ in pairs])
    attention = torch.cat([torch.ones_like(prompts), mask.long()], dim=1)
    ids = torch.cat([prompts, completions], dim=1)
    logits = model(
        input_ids=ids, attention_mask=attention, logits_to_keep=width + 1, use_cache=False
    ).logits[:, :-1]
    logprobs = logits.float().log_softmax(-1).gather(2, completions.unsqueeze(2)).squeeze(2)
    advantages = torch.tensor([sample.advantage for _, sample in pairs]).unsqueeze(1)
    ratio = torch.exp(logprobs - logprobs.detach())
    (-(ratio * advantages * mask).sum() / total).backward()


if __name__ == "__main__":
    main()
