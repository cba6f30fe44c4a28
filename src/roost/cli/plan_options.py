"""The options of ``roost plan``, and the request that they and a recipe make."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from roost.errors import ConfigError, did_you_mean
from roost.planner.cards import Registry, registry
from roost.planner.engine_memory import max_sequences
from roost.planner.models import KnownModel, find_shape
from roost.planner.plan import Plan
from roost.planner.power import processor_for
from roost.planner.request import Engine, Hardware, Request, Training, Wishes, Workload

AUTO = "auto"
"""``--gpus auto``: as many cards as it takes."""

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


def natural(text: str) -> int:
    """A whole number from 1."""
    try:
        value = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} should be a whole number from 1")
    return value


def cards(text: str) -> int | str:
    """A number of cards, or ``auto``."""
    if text == AUTO:
        return text
    try:
        return natural(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from None


def share(text: str) -> float:
    """A number above 0 and up to 1."""
    value = positive(text)
    if value > 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} should be a share of a card, above 0 and up to 1"
        )
    return value


def positive(text: str) -> float:
    """A number above 0."""
    value = nonnegative(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be above 0")
    return value


def nonnegative(text: str) -> float:
    """A number from 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} should be a number from 0")
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a request is made of. Nothing has a default here: what is left out is chosen."""
    what = parser.add_argument_group("the model and the cards")
    what.add_argument("--model", help="a folder, a config.json, a known name or a hub id")
    what.add_argument("--gpu", metavar="NAME", help='a card, such as "H200 NVL"')
    what.add_argument("--gpus", type=cards, metavar="N", help="cards of one node; auto: fewest")
    what.add_argument("--nodes", type=natural, metavar="N", help="servers")
    what.add_argument("--card-file", type=Path, metavar="TOML", help="cards of your own")
    what.add_argument("--processor", metavar="NAME", help="two a node, for the power")
    what.add_argument("--price", type=nonnegative, help="of one card for an hour")
    what.add_argument("--network-gbps", type=positive, help="between nodes, 1e9 bytes a second")
    what.add_argument("--pcie-gbps", type=positive, help="one direction, 1e9 bytes a second")
    what.add_argument(
        "--convention",
        choices=("visible", "listed"),
        help="memory that a process sees, with overheads; or the figure on the box and none",
    )
    _add_training(parser.add_argument_group("the training"))
    _add_work(parser.add_argument_group("the completions of a step"))
    _add_layout(parser.add_argument_group("the layout and the engine (vLLM)"))


def _add_training(group: Any) -> None:
    onoff = argparse.BooleanOptionalAction
    group.add_argument("--method", choices=("lora", "qlora", "full"), help="what is trained")
    group.add_argument("--lora-rank", type=natural, metavar="N", help="width of an adapter")
    group.add_argument("--lora-targets", metavar="NAMES", help="all-linear, or q_proj,v_proj")
    group.add_argument("--dtype", choices=("bfloat16", "float32"), help="of weights")
    group.add_argument("--optimizer", choices=("adamw", "adamw_8bit"))
    group.add_argument("--gradient-checkpointing", action=onoff, help="recompute activations")
    group.add_argument("--beta", type=nonnegative, help="above 0 there is a reference model")
    group.add_argument("--micro-batch-tokens", type=natural, metavar="N", help="of one forward")
    group.add_argument("--iterations", type=natural, metavar="N", help="update passes over a batch")
    group.add_argument("--full-logits", action=onoff, help="a trainer that keeps all logits")
    group.add_argument("--share-prompts", action=onoff, help="each prompt once for its group")


def _add_work(group: Any) -> None:
    group.add_argument("--prompts", type=natural, metavar="N", help="of a step")
    group.add_argument("--generations", type=natural, metavar="N", help="completions of a prompt")
    group.add_argument("--prompt-length", type=natural, metavar="N", help="longest, in tokens")
    group.add_argument("--completion-length", type=natural, metavar="N", help="most tokens")
    group.add_argument("--mean-prompt-length", type=positive, metavar="N", help="expected")
    group.add_argument("--mean-completion-length", type=positive, metavar="N", help="expected")


def _add_layout(group: Any) -> None:
    onoff = argparse.BooleanOptionalAction
    group.add_argument("--mode", choices=("colocate", "server"), help="shared cards, or divided")
    group.add_argument("--gpu-memory-utilization", type=share, metavar="X", help="engine's share")
    group.add_argument("--sleep-level", type=int, choices=(0, 1, 2), help="of a colocated engine")
    group.add_argument("--tensor-parallel", type=natural, metavar="N", help="cards of an engine")
    group.add_argument("--replicas", type=natural, metavar="N", help="engines")
    group.add_argument("--trainer-gpus", type=natural, metavar="N", help="cards that train")
    group.add_argument("--strategy", choices=("ddp", "fsdp", "hybrid"), help="of the trainer")
    group.add_argument("--cache-dtype", choices=("bfloat16", "fp8", "float32"))
    group.add_argument("--weight-dtype", choices=("bfloat16", "fp8", "nf4", "mxfp4", "float32"))
    group.add_argument("--max-num-seqs", type=natural, metavar="N", help="decoded at once, at most")
    group.add_argument("--max-num-batched-tokens", type=natural, metavar="N", help="profile run's")
    group.add_argument("--native-sampler", action=onoff, help="PyTorch's, not FlashInfer's")
    group.add_argument("--enforce-eager", action=onoff, help="without CUDA graphs")
    group.add_argument("--adapter-sync", action=onoff, help="send the adapter, not merged weights")


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
