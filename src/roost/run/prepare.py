"""All that can be checked before a weight is loaded: model files, prompts, rewards, memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from roost.config import RunConfig
from roost.data.prompts import PromptSets, load_prompts
from roost.engines.vllm.sharding import check_shards
from roost.model import loading
from roost.model.outline import check_vocabulary, check_weights, outline
from roost.model.source import ModelSource, find_model, fingerprint, weight_shapes
from roost.planner.embedded import EmbeddedPlan, plan_embedded
from roost.planner.measured import PilotPlace, read_pilot
from roost.planner.model_config import shape_from_config
from roost.planner.model_shape import ModelShape
from roost.rewards import Reward, check_columns, load_rewards
from roost.run import heap
from roost.run.display import Display, track
from roost.run.engines import check_engine
from roost.run.environment import processor_name
from roost.run.ledger import available_bytes, process_bytes
from roost.run.trackers import check_trackers
from roost.samples import Prompt
from roost.training.adapters import resolve_targets
from roost.training.launched import world_size
from roost.training.optimizer import check_optimizer


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that has passed every check that needs no weights."""

    config: RunConfig
    """As given, and what the plan chose for training."""
    base_dir: Path
    source: ModelSource
    model_config: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    context_length: int
    prompts: PromptSets
    rewards: list[Reward]
    shape: ModelShape
    plan: EmbeddedPlan
    model_fingerprint: str
    data_fingerprint: str


def prepare(
    config: RunConfig,
    base_dir: Path,
    display: Display,
    *,
    data: Any = None,
    reward_functions: dict[str, Any] | None = None,
    training: bool = True,
) -> Prepared:
    """Check a run and make its plan.

    Args:
        config: The run.
        base_dir: Where relative paths of data and reward files start.
        display: Shows how far reading the prompts is.
        data: Prompts given as a Python object, in place of ``data.source``.
        reward_functions: Python functions by the name that ``rewards.functions`` uses for them.
        training: Whether it will be trained, or only evaluated.

    Raises:
        RoostError: the first thing that is wrong, by name.
    """
    heap.set_up()
    device = _check_machine(config, training)
    model = _read_model(config)
    rewards = load_rewards(config.rewards, base_dir, functions=reward_functions or {})
    prompts = load_prompts(
        config,
        model.tokenizer,
        context_length=model.context_length,
        base_dir=base_dir,
        source=data,
        training=training,
        track=partial(track, display, "reading prompts"),
    )
    everything = [*prompts.train, *prompts.held_out]
    check_columns(rewards, everything)
    _check_tokens(config, model, everything)
    shape = shape_from_config(model.config.to_dict())
    if training:
        check_shards(config.rollout.tensor_parallel, shape, "rollout.tensor_parallel")
    dtype = loading.choose_dtype(config.model, shape.parameters)
    plan = _plan(config, shape, device, dtype, prompts)
    return Prepared(
        config=plan.resolve(config),
        base_dir=base_dir,
        source=model.source,
        model_config=model.config,
        tokenizer=model.tokenizer,
        device=device,
        dtype=dtype,
        context_length=model.context_length,
        prompts=prompts,
        rewards=rewards,
        shape=shape,
        plan=plan,
        model_fingerprint=fingerprint(model.source),
        data_fingerprint=fingerprint_prompts(everything),
    )


def _check_machine(config: RunConfig, training: bool) -> torch.device:
    """The device, which has what trackers, engine and optimizer need."""
    check_trackers(config.output.trackers)
    device = loading.choose_device(config.model)
    check_engine(config, device)
    if training:
        check_optimizer(config.train, device)
    return device


@dataclass(frozen=True, slots=True)
class _Model:
    """A model as far as its files tell, without weights."""

    source: ModelSource
    config: Any
    skeleton: nn.Module
    tokenizer: Any
    context_length: int


def _read_model(config: RunConfig) -> _Model:
    source = find_model(config.model)
    model_config = loading.load_model_config(source)
    return _Model(
        source=source,
        config=model_config,
        skeleton=_check_model(config, source, model_config),
        tokenizer=loading.load_tokenizer(source, config.model.tokenizer),
        context_length=loading.context_length(model_config),
    )


def _check_tokens(config: RunConfig, model: _Model, prompts: Sequence[Prompt]) -> None:
    """Every token that the tokenizer made has an embedding."""
    largest = [max(prompt.token_ids) for prompt in prompts]
    tokenizer = config.model.tokenizer or model.source.location
    check_vocabulary(model.skeleton, [model.tokenizer.eos_token_id, *largest], tokenizer)


def _plan(
    config: RunConfig,
    shape: ModelShape,
    device: torch.device,
    dtype: torch.dtype,
    prompts: PromptSets,
) -> EmbeddedPlan:
    pilot = None
    if config.rollout.engine == "embedded":
        pilot = read_pilot(place_of(config, shape, device, dtype))
    return plan_embedded(
        config,
        shape,
        available_bytes=available_bytes(device),
        dtype_bytes=dtype.itemsize,
        prompt_tokens=prompts.report.longest,
        process_bytes=process_bytes(device),
        device=device.type,
        mean_prompt=prompts.report.mean,
        pilot=pilot,
        engines=max(1, world_size() // config.rollout.ranks_per_engine),
    )


def place_of(
    config: RunConfig, shape: ModelShape, device: torch.device, dtype: torch.dtype
) -> PilotPlace:
    """What measurements of this run's model on this machine are kept under."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        # The instruction sets that torch found decide its kernels.
        name = f"{processor_name()}, {torch.backends.cpu.get_cpu_capability()}"
    return PilotPlace.of(
        config,
        shape,
        device=name,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        dtype=str(dtype).removeprefix("torch."),
    )


def _check_model(config: RunConfig, source: ModelSource, model_config: Any) -> nn.Module:
    """The model without its weights, which its files and ``lora.targets`` must fit."""
    skeleton = outline(source, model_config)
    shapes = weight_shapes(source)
    if shapes is not None:
        check_weights(source, skeleton, shapes)
    if config.train.method == "lora":
        resolve_targets(skeleton, config.lora.targets)
    return skeleton


def fingerprint_prompts(prompts: Sequence[Prompt]) -> str:
    """A digest of prompts' ids and tokens, to tell on resume that the data is the same."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(repr((prompt.id, prompt.token_ids)).encode())
    return digest.hexdigest()
