"""How far the engine's and the trainer's log-probabilities of the same tokens are apart.

python benchmarks/agreement.py --model models/smollm2-135m-instruct --tokens 64
"""

from __future__ import annotations

import argparse

import torch

from roost.bench.job import WORKLOADS
from roost.bench.prompts import Prompter
from roost.bench.tables import table
from roost.bench.training import build_trainer, run_config
from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import SamplingParams
from roost.samples import Group
from roost.training.batch import TrainBatch

PROMPTS, GENERATIONS = 4, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    rows = [measure(args.model, method, args.tokens) for method in ("full", "lora")]
    print(table(rows))


def measure(model: str, method: str, tokens: int) -> dict[str, object]:
    """Sample with the engine, score with the trainer, compare."""
    trainer, tokenizer = build_trainer(run_config(model, method, tokens))
    shake_adapter(trainer.policy.trainable_parameters())
    prompter = Prompter(tokenizer)
    prompts = prompter.encode(prompter.rows(PROMPTS, WORKLOADS["short"].prompt_tokens))
    groups = {prompt.id: Group(prompt, []) for prompt in prompts}
    engine = EmbeddedEngine(trainer.policy, tokenizer, cache_bytes=2**32)
    sampling = SamplingParams(max_completion_tokens=tokens)
    for sample in engine.generate(prompts, GENERATIONS, sampling, seed=0, step=0):
        sample.reward = 1.0
        groups[sample.prompt_id].samples.append(sample)
    batch = TrainBatch.of(list(groups.values()), trainer.config)
    trained = torch.cat(trainer.logprobs(trainer.policy, batch))
    sampled = torch.tensor([p for s in batch.samples for p in s.sample.full_logprobs])
    difference = (trained - sampled).abs()
    return {
        "method": method,
        "tokens": len(difference),
        "mean": f"{float(difference.mean()):.1e}",
        "most": f"{float(difference.max()):.1e}",
    }


def shake_adapter(parameters: dict[str, torch.nn.Parameter]) -> None:
    """Give an adapter's B, which starts at 0, values as after training."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in parameters.items():
        if "lora_B" in name:
            parameter.data.copy_(0.02 * torch.randn(parameter.shape, generator=generator))


if __name__ == "__main__":
    main()
