"""Seconds of one step: decode, score, train."""

from __future__ import annotations

from dataclasses import dataclass

from roost.planner.book import Book
from roost.planner.constants import Constants
from roost.planner.decode import DecodeStep, peak_flops
from roost.planner.engine_memory import (
    EngineMemory,
    served_dtype,
    weight_bytes,
)
from roost.planner.generation import generation
from roost.planner.links import Traffic
from roost.planner.request import Layout, Request


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of one step, by phase."""

    generate: float
    logprob: float
    train: float
    sync: float
    sleep_wake: float
    decode: DecodeStep
    passes: int
    concurrent: int

    @property
    def total(self) -> float:
        """The phases one after another."""
        return self.generate + self.logprob + self.train + self.sync + self.sleep_wake


def seconds(
    request: Request,
    layout: Layout,
    engine: EngineMemory,
    links: Traffic,
    book: Book,
    constants: Constants,
) -> Seconds:
    """Plan the time of a step."""
    generated = generation(request, layout, engine, book, constants)
    logprob = _logprob(request, layout, book, constants)
    train = _train(request, layout, links, book, constants)
    return Seconds(
        generated.seconds,
        logprob,
        train,
        links.sync_s,
        _sleep_wake(request, layout, book, constants),
        generated.step,
        generated.passes,
        generated.concurrent,
    )


def _attention_flops(request: Request) -> float:
    """Of one token, one forward, causal: ``2 * layers * heads * head_dim * length``."""
    shape, work = request.model.shape, request.workload
    length = work.mean_prompt + work.mean_completion
    return 2 * shape.layers * shape.heads * shape.head_dim * length


def _logprob(request: Request, layout: Layout, book: Book, constants: Constants) -> float:
    training, shape = request.training, request.model.shape
    passes = training.logprob_passes + (1 if training.beta > 0 else 0)
    flops = peak_flops(request.hardware.card)
    each = 2 * shape.multiplied_parameters + _attention_flops(request)
    rate = layout.trainer_gpus * flops * constants.forward_mfu
    overhead = 0.0 if request.listed else constants.forward_overhead_s
    return book.number(
        "step.logprob_s",
        passes * (each * request.trained_tokens / rate + overhead),
        "s",
        "passes x ((2 N + attention) x tokens / (cards x peak x share) + overhead)",
        constants.source,
        passes=passes,
        tokens=request.trained_tokens,
        multiplied_parameters=shape.multiplied_parameters,
        share_of_peak=constants.forward_mfu,
        overhead_s=overhead,
        trainer_gpus=layout.trainer_gpus,
    )


def _train(
    request: Request, layout: Layout, links: Traffic, book: Book, constants: Constants
) -> float:
    training, shape = request.training, request.model.shape
    full = training.method == "full"
    # Forward 2, gradient of the input 2, gradient of the weight 2 (not of a frozen one),
    # recomputed forward 2.
    factor = (6 if full else 4) + (2 if training.gradient_checkpointing else 0)
    each: float = factor * shape.multiplied_parameters
    each += (factor / 2) * _attention_flops(request)
    mfu = constants.full_mfu if full else constants.adapter_mfu
    flops = peak_flops(request.hardware.card)
    tokens = training.passes * request.trained_tokens
    compute = each * tokens / (layout.trainer_gpus * flops * mfu)
    overhead = 0.0 if request.listed else constants.train_overhead_s
    # Gathers overlap with arithmetic; the gradients' all-reduce comes at the end.
    return book.number(
        "step.train_s",
        max(compute, training.passes * links.gather_s) + links.allreduce_s + overhead,
        "s",
        "max((flops of a token) x tokens / (cards x peak x share), FSDP gathers) + all-reduce + "
        "overhead",
        constants.source,
        flops_per_parameter=factor,
        tokens=tokens,
        multiplied_parameters=shape.multiplied_parameters,
        share_of_peak=mfu,
        trainer_gpus=layout.trainer_gpus,
        compute_s=compute,
        gather_s=links.gather_s,
        allreduce_s=links.allreduce_s,
        overhead_s=overhead,
    )


def _sleep_wake(request: Request, layout: Layout, book: Book, constants: Constants) -> float:
    level = layout.sleep_level if layout.mode == "colocate" else 0
    weights = weight_bytes(request.model.shape, served_dtype(request))
    moved = 2 * weights / layout.tensor_parallel if level == 1 else 0.0
    value = 0.0 if level == 0 else constants.sleep_s + moved / (constants.host_copy_gbps * 1e9)
    return book.number(
        "step.sleep_wake_s",
        value,
        "s",
        "0 without sleep, else a fixed time + weights to the host and back at level 1",
        constants.source,
        sleep_level=level,
        host_bytes=moved,
    )
