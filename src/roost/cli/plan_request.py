"""The request that the options of ``roost plan`` and a recipe make, and what it left open."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roost.cli.plan_flags import AUTO
from roost.errors import ConfigError, did_you_mean
from roost.planner.cards import Registry, registry
from roost.planner.engine_memory import max_sequences
from roost.planner.models import KnownModel, find_shape
from roost.planner.plan import Plan
from roost.planner.power import processor_for
from roost.planner.request import Engine, Hardware, Request, Training, Wishes, Workload

WORKLOAD = {
    "prompts": "prompts",
    "generations": "generations",
    "prompt_length": "prompt_tokens",
    "completion_length": "completion_tokens",
    "mean_prompt_length": "mean_prompt_tokens",
    "mean_completion_length": "mean_completion_tokens",
}
TRAINING = {
    "method": "method",
    "lora_rank": "lora_rank",
    "lora_targets": "lora_targets",
    "dtype": "dtype",
    "optimizer": "optimizer",
    "gradient_checkpointing": "gradient_checkpointing",
    "beta": "beta",
    "micro_batch_tokens": "micro_batch_tokens",
    "iterations": "passes",
    "full_logits": "full_logits",
    "share_prompts": "share_prompts",
}
ENGINE = {
    "cache_dtype": "cache_dtype",
    "weight_dtype": "weight_dtype",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_batched_tokens",
    "native_sampler": "native_sampler",
    "enforce_eager": "enforce_eager",
    "adapter_sync": "adapter_sync",
}
WISHES = {
    "mode": "mode",
    "gpu_memory_utilization": "utilization",
    "sleep_level": "sleep_level",
    "tensor_parallel": "tensor_parallel",
    "replicas": "replicas",
    "trainer_gpus": "trainer_gpus",
    "strategy": "strategy",
}
HARDWARE = {"price": "price", "network_gbps": "network_gbps", "pcie_gbps": "pcie_gbps"}
OWN = ("model", "gpu", "gpus", "nodes", "processor", "convention")
NAMES = (*WORKLOAD, *TRAINING, *ENGINE, *WISHES, *HARDWARE, *OWN)
SILENT = {
    *("mean_prompt_length", "mean_completion_length", "iterations", "full_logits"),
    *("share_prompts", "weight_dtype", "max_num_batched_tokens", "enforce_eager"),
    *("adapter_sync", "price", "network_gbps", "pcie_gbps", "model", "gpu", "native_sampler"),
}
"""Options that are not worth naming among those the plan chose."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and whether the number of cards is to be found."""

    request: Request
    registry: Registry
    auto: bool
    nodes: int | None
    """Servers, where their number was given."""


def flags_given(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were not left out."""
    values = {name: getattr(args, name) for name in NAMES}
    return {name: value for name, value in values.items() if value is not None}


def ask(args: argparse.Namespace, recipe: Mapping[str, Any], *, card: str | None = None) -> Asked:
    """The request that options make, over what a recipe says.

    Args:
        args: The parsed options.
        recipe: Values by the options' names.
        card: The card to take where ``--gpu`` is left out.

    Raises:
        ConfigError: something is unknown or contradicts the rest.
        ModelError: the model is not found.
    """
    given = {**recipe, **flags_given(args)}
    known = registry() if args.card_file is None else registry().with_file(args.card_file)
    card = given.get("gpu") or card
    if "model" not in given:
        raise ConfigError("--model: name a model to plan for, such as --model Qwen3-8B.")
    if card is None:
        raise ConfigError('--gpu: name a card to plan for, such as --gpu "H100 SXM".')
    model = find_shape(given["model"])
    if given.get("dtype") == "auto":  # a recipe's, so its schema is loaded already
        from roost.config.schema import SMALL_MODEL_PARAMETERS

        small = model.shape.parameters < SMALL_MODEL_PARAMETERS
        given["dtype"] = "float32" if small else "bfloat16"
    hardware = Hardware(
        known.card(card),
        gpus_per_node=1 if given.get("gpus", AUTO) == AUTO else given["gpus"],
        nodes=given.get("nodes", 1),
        processor=known.processor(given["processor"]) if "processor" in given else None,
        **_pick(given, HARDWARE),
    )
    training = Training(**_pick(given, TRAINING))
    request = Request(
        model,
        hardware,
        workload=_workload(given),
        training=_with_targets(training, model),
        engine=Engine(**_pick(given, ENGINE)),
        wishes=Wishes(**_pick(given, WISHES)),
        convention=given.get("convention", "visible"),
        chosen=tuple(flag(name) for name in NAMES if name not in given and name not in SILENT),
    )
    return Asked(request, known, given.get("gpus", AUTO) == AUTO, given.get("nodes"))


def _pick(given: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, Any]:
    return {field: given[name] for name, field in table.items() if name in given}


def flag(name: str) -> str:
    """An option as it is typed."""
    return "--" + name.replace("_", "-")


def _workload(given: Mapping[str, Any]) -> Workload:
    work = Workload(**_pick(given, WORKLOAD))
    for which, mean, most in (
        ("prompt-length", work.mean_prompt_tokens, work.prompt_tokens),
        ("completion-length", work.mean_completion_tokens, work.completion_tokens),
    ):
        if mean is not None and mean > most:
            raise ConfigError(f"--mean-{which} {mean:g}: is above the longest, --{which} {most}.")
    return work


def _with_targets(training: Training, model: KnownModel) -> Training:
    """The training with its adapter's targets as a list.

    Raises:
        ConfigError: the model has no layer of that name.
    """
    targets = training.lora_targets
    if targets == "all-linear" or training.method == "full":
        return training
    names = [one.strip() for one in targets.split(",")] if isinstance(targets, str) else targets
    layers = {linear.name for block in model.shape.blocks for linear in block.linears}
    for name in names:
        if name.rpartition(".")[2] not in layers:
            raise ConfigError(
                f"--lora-targets {name!r}: {model.name} has no such linear layer."
                f"{did_you_mean(name, layers)}"
            )
    return replace(training, lora_targets=names)


def chosen_values(plan: Plan) -> dict[str, Any]:
    """What was left out, by the name of its option, and what the plan took for it."""
    request, layout = plan.request, plan.layout
    own = {
        "gpus": request.hardware.gpus_per_node,
        "nodes": request.hardware.nodes,
        "processor": processor_for(request.hardware).name,
        "convention": request.convention,
        "micro_batch_tokens": plan.trainer.micro_batch_tokens,
        "max_num_seqs": max_sequences(request, layout),
    }
    tables = (
        (WORKLOAD, request.workload),
        (TRAINING, request.training),
        (ENGINE, request.engine),
        (WISHES, layout),
    )
    for table, values in tables:
        own = {**{name: getattr(values, field) for name, field in table.items()}, **own}
    return {name: own[name] for option in request.chosen if (name := _name(option)) in own}


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
