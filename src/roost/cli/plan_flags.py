"""The options of ``roost plan``. None has a default: what is left out is chosen."""

from __future__ import annotations

import argparse
from math import isfinite
from pathlib import Path
from typing import Any

AUTO = "auto"
"""``--gpus auto``: as many cards as it takes."""


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
    """Declare what a request is made of."""
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
