"""Changes to a request, tried one by one: what makes it fit, or makes it faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from roost.errors import ConfigError
from roost.planner.constants import PUBLISHED, Constants
from roost.planner.layouts import choose
from roost.planner.plan import Plan
from roost.planner.request import Request
from roost.planner.search import MOST_NODES

SHOWN = 3
FASTER = 0.97
"""A change is worth naming where the step takes at most this share of the time."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change and what it does."""

    change: str
    flags: str
    """What to add to the command."""
    total_s: float
    gpu_seconds: float
    """Cards times seconds of a step: what a step costs."""
    headroom_bytes: int
    """Left on the fullest card."""


@dataclass(frozen=True, slots=True)
class _Change:
    what: str
    flags: str
    request: Request
    price: int
    """0 changes nothing that is learnt, 1 the numbers, 2 the task, 3 the cards."""


def suggestions(plan: Plan, constants: Constants = PUBLISHED) -> list[Suggestion]:
    """The three cheapest changes that make a plan fit, or that make one that fits faster.

    Cheapest is first what changes nothing in what is learnt, then what changes its precision,
    then its task, then what takes more cards; among equals, the fewest card-seconds a step.
    """
    found: list[Suggestion] = []
    changes = sorted(_changes(plan.request, plan, constants), key=lambda change: change.price)
    for price, level in groupby(changes, key=lambda change: change.price):
        if len(found) >= SHOWN or (plan.fits and price > 1):
            break  # what comes now is dearer
        tried = [_try(plan, change, constants) for change in level]
        found += sorted((s for s in tried if s is not None), key=lambda s: s.gpu_seconds)
    return found[:SHOWN]


def _try(plan: Plan, change: _Change, constants: Constants) -> Suggestion | None:
    """What a change does; None where it does not help."""
    other = _chosen(change.request, constants)
    if other is None or not other.fits:
        return None
    seconds = other.seconds.total
    if plan.fits and seconds >= FASTER * plan.seconds.total:
        return None
    spent = seconds * other.request.hardware.gpus
    return Suggestion(change.what, change.flags, seconds, spent, other.headroom_bytes)


def _changes(request: Request, plan: Plan, constants: Constants) -> Iterator[_Change]:
    yield from _layout_changes(request, constants)
    yield from _training_changes(request)
    yield from _work_changes(request)
    yield from _card_changes(request, plan)


def _layout_changes(request: Request, constants: Constants) -> Iterator[_Change]:
    wishes = request.wishes
    if wishes.sleep_level == 0:
        with_sleep = replace(wishes, sleep_level=1)
        yield _Change(
            "let the engine sleep while training",
            "--sleep-level 1",
            replace(request, wishes=with_sleep),
            0,
        )
    if wishes.utilization is not None:
        free = replace(wishes, utilization=None)
        plan = _chosen(replace(request, wishes=free), constants)
        if plan is not None:
            share = plan.layout.utilization
            yield _Change(
                f"give the engine {share} of each card",
                f"--gpu-memory-utilization {share}",
                replace(request, wishes=replace(wishes, utilization=share)),
                0,
            )
    if wishes.strategy == "ddp" and request.hardware.gpus > 1:
        sharded = replace(wishes, strategy="fsdp")
        yield _Change(
            "divide the trainer's states over its cards",
            "--strategy fsdp",
            replace(request, wishes=sharded),
            0,
        )
    for mode in ("colocate", "server"):
        if wishes.mode is not None and wishes.mode != mode:
            other = replace(wishes, mode=mode, utilization=None)
            yield _Change(
                f"{mode} in place of {wishes.mode}",
                f"--mode {mode}",
                replace(request, wishes=other),
                0,
            )
    if wishes.tensor_parallel is not None:
        yield _Change(
            f"divide the engine over {2 * wishes.tensor_parallel} cards",
            f"--tensor-parallel {2 * wishes.tensor_parallel}",
            replace(
                request,
                wishes=replace(wishes, tensor_parallel=2 * wishes.tensor_parallel, replicas=None),
            ),
            0,
        )


def _chosen(request: Request, constants: Constants) -> Plan | None:
    """The plan to take; None where the wishes contradict each other."""
    try:
        return choose(request, constants)
    except ConfigError:
        return None


def _training_changes(request: Request) -> Iterator[_Change]:
    training = request.training
    least = request.workload.tokens
    if (training.micro_batch_tokens or 0) > least:
        smaller = replace(training, micro_batch_tokens=least)
        yield _Change(
            f"micro-batches of {least:,} tokens",
            f"--micro-batch-tokens {least}",
            replace(request, training=smaller),
            0,
        )
    if not training.gradient_checkpointing:
        again = replace(training, gradient_checkpointing=True)
        yield _Change(
            "recompute activations",
            "--gradient-checkpointing",
            replace(request, training=again),
            0,
        )
    if training.optimizer == "adamw" and training.method == "full":
        small = replace(training, optimizer="adamw_8bit")
        yield _Change(
            "moments in 8 bits",
            "--optimizer adamw_8bit",
            replace(request, training=small),
            1,
        )
    if training.method == "full":
        lora = replace(training, method="lora")
        yield _Change(
            f"train an adapter of rank {training.lora_rank}",
            "--method lora",
            replace(request, training=lora),
            1,
        )
    if training.method == "lora":
        packed = replace(training, method="qlora")
        yield _Change(
            "keep the base in 4 bits", "--method qlora", replace(request, training=packed), 1
        )
    if training.beta > 0 and training.method == "full":
        free = replace(training, beta=0.0)
        yield _Change("no reference model", "--beta 0", replace(request, training=free), 1)
    if request.engine.cache_dtype == "bfloat16":
        narrow = replace(request.engine, cache_dtype="fp8")
        yield _Change("cache in 8 bits", "--cache-dtype fp8", replace(request, engine=narrow), 1)


def _work_changes(request: Request) -> Iterator[_Change]:
    work = request.workload
    half = work.completion_tokens // 2
    if half >= 1:
        shorter = replace(work, completion_tokens=half, mean_completion_tokens=None)
        yield _Change(
            f"completions of {half:,} tokens",
            f"--completion-length {half}",
            replace(request, workload=shorter),
            2,
        )


def _card_changes(request: Request, plan: Plan) -> Iterator[_Change]:
    hardware = request.hardware
    for factor in (2, 4):
        more = replace(hardware, gpus_per_node=factor * hardware.gpus_per_node)
        if more.gpus_per_node > 8 >= hardware.gpus_per_node:
            more = replace(hardware, gpus_per_node=8, nodes=factor * hardware.nodes)
        if more.nodes > MOST_NODES:
            return
        wishes = replace(request.wishes, trainer_gpus=None, replicas=None)
        flags = f"--gpus {more.gpus_per_node}"
        flags += f" --nodes {more.nodes}" if more.nodes > 1 else ""
        yield _Change(
            f"{more.gpus} cards in place of {hardware.gpus}",
            flags,
            replace(request, hardware=more, wishes=wishes),
            3,
        )
        if plan.fits:
            return
