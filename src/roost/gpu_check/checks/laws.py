"""The laws that a device's kernels could break, on small models of each architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from roost.config import LoraConfig
from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import SamplingParams
from roost.gpu_check import groups as made
from roost.gpu_check.models import SMALL_MODELS, device_of, plain_copy, small_model
from roost.gpu_check.results import Found, Place, require
from roost.model.policy import Policy
from roost.samples import Group, Prompt
from roost.training.adapters import add_adapter
from roost.training.batch import TrainBatch
from roost.training.trainer import Trainer

EXACT = 1e-5
"""Relative error of gradients in float32, and of log-probabilities."""
HALF_GRADIENT = 0.08
"""Relative error of the whole gradient in bfloat16, against float32 of the same weights."""
HALF_LOGPROBS = 0.05
"""Mean error of log-probabilities in bfloat16, nats a token, against float32 likewise."""
ALIKE = {torch.float32: 1e-4, torch.bfloat16: 0.02}
"""Difference of engine and trainer, nats a token: the most in float32, the mean in bfloat16."""
CACHE_BYTES = 2**28


def _shapes(place: Place) -> tuple[list[int], list[list[int]]]:
    """Lengths of prompts and completions, over a kernel's block and a chunk unless small."""
    if place.small:
        return [1, 5, 12], [[2, 9], [7, 1], [15, 3]]
    return [1, 300, 70], [[2, 9, 130], [70, 1, 64], [257, 3, 31]]


def packing(place: Place) -> Found:
    """Law 2, in float32 against one sequence a forward; in bfloat16 as near as rounding lets it."""
    device, batches = device_of(place), made.random_groups(*_shapes(place))
    worst = {"logprobs": 0.0, "gradient": 0.0, "half_logprobs": 0.0, "half_gradient": 0.0}
    for architecture in SMALL_MODELS:
        for dtype, prefix in ((torch.float32, ""), (torch.bfloat16, "half_")):
            model = small_model(architecture, device, dtype)
            plain = plain_copy(model)
            trainer = made.trainer_of(model, 400)
            found, wanted = _logprobs(trainer, plain, batches)
            gap = (found - wanted).abs()
            error = float(gap.mean() if prefix else (gap / (1 + wanted.abs())).max())
            limit = HALF_LOGPROBS if prefix else EXACT
            require(error <= limit, f"{architecture}, {dtype}: log-probabilities {error:.2g} off")
            gradients = made.plain_gradient(plain, batches), made.packed_gradient(trainer, batches)
            measure = made.whole_distance if prefix else made.distance
            off = measure(*gradients)
            limit = HALF_GRADIENT if prefix else EXACT
            require(off <= limit, f"{architecture}, {dtype}: gradients {off:.2g} off")
            worst[f"{prefix}logprobs"] = max(worst[f"{prefix}logprobs"], error)
            worst[f"{prefix}gradient"] = max(worst[f"{prefix}gradient"], off)
    return Found(
        f"{len(SMALL_MODELS)} architectures; float32: log-probabilities {worst['logprobs']:.1g}, "
        f"gradients {worst['gradient']:.1g} off at most; bfloat16: {worst['half_logprobs']:.1g} "
        f"nats a token, {worst['half_gradient']:.1%} of the gradient",
        worst,
    )


def _logprobs(
    trainer: Trainer, plain: Any, groups: Sequence[Group]
) -> tuple[torch.Tensor, torch.Tensor]:
    batch = TrainBatch.of(groups, trainer.config)
    packed = torch.cat(trainer.logprobs(trainer.policy, batch))
    with torch.no_grad():
        alone = [
            made.plain_logprobs(plain, groups[s.group].prompt.token_ids, s.sample.token_ids)
            for s in batch.samples
        ]
    return packed, torch.cat(alone)


def split(place: Place) -> Found:
    """Law 1: micro-batches of any size, groups divided among them, give one gradient."""
    device, groups = device_of(place), made.random_groups(*_shapes(place))
    model = small_model("llama", device, torch.float32)
    whole = made.packed_gradient(made.trainer_of(model), groups)
    errors = {}
    for budget in (1, 40, 150, 400):
        parts = made.packed_gradient(made.trainer_of(model, budget), groups)
        errors[str(budget)] = made.distance(whole, parts)
    worst = max(errors.values())
    require(worst <= EXACT, f"micro-batches change the gradient: {errors}")
    return Found(f"micro-batches of {', '.join(errors)} tokens: {worst:.1g} off at most", errors)


def on_policy(place: Place) -> Found:
    """Law 3, for every architecture and precision, at any temperature, with an adapter too."""
    device = device_of(place)
    worst = dict.fromkeys(ALIKE, 0.0)
    for architecture in SMALL_MODELS:
        for dtype in ALIKE:
            module = small_model(architecture, device, dtype)
            # Below temperature 1 rounding in bfloat16 is magnified with the scores.
            for temperature in (0.3, 1.0, 1.7) if dtype is torch.float32 else (1.0,):
                gap = _mismatch(module, temperature, place)
                worst[dtype] = max(worst[dtype], _within(gap, dtype, architecture))
    for dtype in ALIKE:
        adapted = _adapted(small_model("llama", device, dtype))
        gap = _mismatch(adapted, 1.0, place)
        worst[dtype] = max(worst[dtype], _within(gap, dtype, "llama with an adapter"))
    figures = {str(dtype).removeprefix("torch."): value for dtype, value in worst.items()}
    return Found(
        f"float32 {figures['float32']:.1g} nats at most, bfloat16 {figures['bfloat16']:.1g} "
        "on average",
        figures,
    )


def _mismatch(module: Any, temperature: float, place: Place) -> torch.Tensor:
    """Per token, |trainer's log-probability - engine's|."""
    budget = 12 if place.small else 150
    rollout = {"max_completion_tokens": budget, "temperature": temperature}
    trainer = made.trainer_of(module, rollout=rollout)
    prompts = [group.prompt for group in made.random_groups(*_shapes(place))]
    groups = _sampled(trainer.policy, prompts, budget, temperature)
    batch = TrainBatch.of(groups, trainer.config)
    scored = torch.cat(trainer.logprobs(trainer.policy, batch)).cpu()
    engine = [p for sample in batch.samples for p in sample.sample.full_logprobs]
    return (scored - torch.tensor(engine)).abs()


def _sampled(
    policy: Policy, prompts: Sequence[Prompt], budget: int, temperature: float = 1.0
) -> list[Group]:
    groups = {prompt.id: Group(prompt, []) for prompt in prompts}
    engine = EmbeddedEngine(policy, None, cache_bytes=CACHE_BYTES)
    sampling = SamplingParams(budget, temperature=temperature)
    for sample in engine.generate(prompts, 3, sampling, seed=1, step=0):
        sample.reward = 1.0
        groups[sample.prompt_id].samples.append(sample)
    return list(groups.values())


def _within(gap: torch.Tensor, dtype: torch.dtype, what: str) -> float:
    value = float(gap.max() if dtype is torch.float32 else gap.mean())
    require(value <= ALIKE[dtype], f"{what}, {dtype}: engine and trainer are {value:.2g} apart")
    return value


def _adapted(module: Any) -> Any:
    """With an adapter whose B is not 0, so that it matters."""
    adapted: Any = add_adapter(module, LoraConfig(rank=4), seed=0)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return adapted


def idle(place: Place) -> Found:
    """Law 4, in both precisions, all weights and an adapter."""
    device, groups = device_of(place), made.random_groups(*_shapes(place))
    for dtype in ALIKE:
        for method in ("full", "lora"):
            module = small_model("qwen3", device, dtype)
            if method == "lora":
                module = add_adapter(module, LoraConfig(rank=4), seed=0)
            before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            train = {"method": method, "learning_rate": 0.0}
            metrics = made.trainer_of(module, train=train).update(groups)
            require(metrics["grad_norm"] > 0, f"{method}, {dtype}: there is no gradient at all")
            moved = [n for n, t in module.state_dict().items() if not torch.equal(t, before[n])]
            require(not moved, f"{method}, {dtype}: rate 0 moved {moved[:3]}")
    for group in groups:
        for sample in group.samples:
            sample.advantage = 0.0
    still = made.packed_gradient(made.trainer_of(small_model("qwen3", device, dtype)), groups)
    require(all(not bool(g.any()) for g in still.values()), "no advantage gives a gradient")
    return Found("float32 and bfloat16, full and LoRA: not one bit moved")


def base(place: Place) -> Found:
    """Law 6: sampling and training with an adapter leave the base as it was."""
    device, groups = device_of(place), made.random_groups(*_shapes(place))
    module = small_model("qwen3_moe", device, torch.bfloat16)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    adapted = add_adapter(module, LoraConfig(rank=4), seed=1)
    train = {"method": "lora", "learning_rate": 1e-2}
    trainer = made.trainer_of(adapted, train=train, loss={"beta": 0.1})
    for _ in range(3):
        _sampled(trainer.policy, [group.prompt for group in groups], 8)
        changed = trainer.update(groups)["weights/changed"]
        require(changed > 0, "the adapter itself does not move")
    after = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): parameter
        for name, parameter in adapted.named_parameters()
    }
    moved = [name for name, tensor in before.items() if not torch.equal(after[name], tensor)]
    require(not moved, f"training an adapter moved {moved[:3]}")
    return Found(f"{len(before)} base tensors, 3 updates: not one bit moved")
