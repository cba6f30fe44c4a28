"""Tokens a second of the embedded engine beside transformers' ``generate`` and the floor.

All three decode the same prompts with the same weights, as many tokens a sequence (nothing stops
early), drawn at temperature 1 from the whole vocabulary. The floor is the matrix products of the
decode steps alone: what no engine on these weights can be faster than.

    python benchmarks/generate.py --model models/smollm2-135m-instruct --sequences 32 --tokens 128
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from timing import alternate, table
from transformers import AutoModelForCausalLM

from roost.config.loading import build_config
from roost.data.prompts import load_prompts
from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import SamplingParams
from roost.model.loading import load_policy
from roost.samples import Prompt

GENERATIONS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    config = build_config({"model": args.model})
    policy, tokenizer = load_policy(config.model)
    prompts = arithmetic_prompts(args.model, tokenizer, args.sequences // GENERATIONS)
    engine = EmbeddedEngine(policy, tokenizer, cache_bytes=2**32)
    rival = AutoModelForCausalLM.from_pretrained(args.model, dtype=policy.dtype).eval()
    seconds = alternate(
        {
            "Roost, embedded engine": lambda: roost_generate(engine, prompts, args.tokens),
            "transformers generate": lambda: transformers_generate(rival, prompts, args.tokens),
            "floor: matrix products": lambda: matrix_products(rival, args.sequences, args.tokens),
        },
        args.rounds,
    )
    report(seconds, args)


def arithmetic_prompts(model: str, tokenizer: Any, count: int) -> list[Prompt]:
    """Chat prompts of two-term sums, about 47 tokens each with SmolLM2's tokenizer."""
    options = {"size": 4 * count, "seed": 1, "min_terms": 2, "max_terms": 2}
    config = build_config(
        {
            "model": model,
            "data": {"source": "reasoning_gym:chain_sum", "options": options},
            "eval": {"prompts": 0},
        }
    )
    return load_prompts(config, tokenizer, context_length=2048).train[:count]


def roost_generate(engine: EmbeddedEngine, prompts: list[Prompt], tokens: int) -> None:
    sampling = SamplingParams(max_completion_tokens=tokens)
    samples = list(engine.generate(prompts, GENERATIONS, sampling, seed=0, step=0))
    assert all(len(sample.token_ids) == tokens for sample in samples)


def transformers_generate(model: Any, prompts: list[Prompt], tokens: int) -> None:
    """``generate`` at its plainest; all prompts have as many copies as samples are asked for."""
    longest = max(len(prompt.token_ids) for prompt in prompts)
    rows = [
        ([0] * (longest - len(p.token_ids)), list(p.token_ids))
        for p in prompts
        for _ in range(GENERATIONS)
    ]
    output = model.generate(
        input_ids=torch.tensor([[*padding, *ids] for padding, ids in rows]),
        attention_mask=torch.tensor([[0] * len(pad) + [1] * len(ids) for pad, ids in rows]),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        pad_token_id=0,
    )
    assert output.shape[1] == longest + tokens


@torch.inference_mode()
def matrix_products(model: Any, sequences: int, tokens: int) -> None:
    """The products of ``tokens`` decode steps: every linear layer and the output head."""
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    inputs = {
        m.in_features: torch.randn(sequences, m.in_features, dtype=m.weight.dtype) for m in layers
    }
    for _ in range(tokens):
        for layer in layers:
            torch.nn.functional.linear(inputs[layer.in_features], layer.weight)


def report(seconds: dict[str, float], args: argparse.Namespace) -> None:
    total = args.sequences * args.tokens
    ours = seconds["Roost, embedded engine"]
    rows: list[dict[str, object]] = [
        {
            "what": name,
            "seconds": value,
            "tokens/s": round(total / value),
            "time against Roost": value / ours,
        }
        for name, value in seconds.items()
    ]
    print(json.dumps(rows) if args.json else table(rows))


if __name__ == "__main__":
    main()
