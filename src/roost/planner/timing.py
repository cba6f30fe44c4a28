"""Seconds of one step: decode, score, train."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from roost.planner.bands import around
from roost.planner.book import Book
from roost.planner.constants import Constants
from roost.planner.decode import DecodeStep, decode_step, payload_seconds, peak_flops
from roost.planner.engine_memory import (
    BLOCK,
    EngineMemory,
    engine_rollouts,
    max_sequences,
    served_dtype,
    weight_bytes,
)
from roost.planner.links import Traffic
from roost.planner.request import BYTES, Layout, Request


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
    generate, decode, passes, concurrent = _generate(request, layout, engine, book, constants)
    logprob = _logprob(request, layout, book, constants)
    train = _train(request, layout, links, book, constants)
    return Seconds(
        generate,
        logprob,
        train,
        links.sync_s,
        _sleep_wake(request, layout, book, constants),
        decode,
        passes,
        concurrent,
    )


def _generate(
    request: Request, layout: Layout, engine: EngineMemory, book: Book, constants: Constants
) -> tuple[float, DecodeStep, int, int]:
    work, shape = request.workload, request.model.shape
    rollouts = engine_rollouts(request, layout)
    passes = book.whole(
        "rollout.passes_per_step",
        ceil(rollouts / max(1, min(engine.resident, rollouts))),
        "passes",
        "ceil(rollouts of one engine / resident_rollouts)",
        rollouts_of_one_engine=rollouts,
        resident_rollouts=engine.resident,
        replicas=layout.replicas,
    )
    # A rollout grows as it decodes, so on average half of its completion is in the cache.
    average = work.mean_prompt + work.mean_completion / 2
    width = BYTES[request.engine.cache_dtype]
    one = shape.kv_elements(ceil(average / BLOCK) * BLOCK, layout.tensor_parallel) * width
    fit = int(max(0, engine.cache) / layout.tensor_parallel // one)
    concurrent = max(1, min(fit, max_sequences(request, layout), rollouts))
    decode = decode_step(request, layout, constants, concurrent, average)
    waves = max(1.0, rollouts / concurrent)
    steps = max(float(work.completion_tokens), waves * work.mean_completion)
    fixed = max(decode.weights, decode.arithmetic) + decode.launches + decode.allreduce
    grown = rollouts * work.mean_completion * (decode.cache + decode.sequences) / concurrent
    shared = work.prompts / layout.replicas * work.mean_prompt
    peak = peak_flops(request.hardware.card)
    flops = peak * constants.prefill_efficiency * layout.tensor_parallel
    prefill = 2 * shape.multiplied_parameters * shared / flops
    prefill += (
        2 * shape.layers * payload_seconds(request, layout.tensor_parallel, shared, constants)
    )
    book.number(
        "rollout.decode_step_s",
        decode.total,
        "s",
        "max(weights, arithmetic) + cache + launches + all-reduce + sequences, of the concurrent "
        "rollouts at half of their completion",
        constants.source,
        weights_s=decode.weights,
        arithmetic_s=decode.arithmetic,
        cache_s=decode.cache,
        launches_s=decode.launches,
        allreduce_s=decode.allreduce,
        sequences_s=decode.sequences,
    )
    total = book.number(
        "step.generate_s",
        fixed * steps + grown + prefill,
        "s",
        "decode steps x (weights or arithmetic + launches + all-reduce) + rollouts x completion x "
        "(cache + sampler) + prefill of each prompt once",
        constants.source,
        decode_steps=steps,
        concurrent_rollouts=concurrent,
        rollouts_of_one_engine=rollouts,
        mean_context=average,
        weights_s=decode.weights,
        arithmetic_s=decode.arithmetic,
        launches_s=decode.launches,
        allreduce_s=decode.allreduce,
        cache_s=decode.cache,
        sampler_s=decode.sequences,
        prefill_s=prefill,
    )
    for name, edge in zip(("low", "high"), around(total, constants.generate_spread), strict=True):
        book.number(
            f"step.generate_{name}_s",
            edge,
            "s",
            "generate_s x exp(-+ 1.645 x spread): 90 % of runs are expected between low and high",
            constants.source,
            generate_s=total,
            spread=constants.generate_spread,
        )
    return total, decode, passes, concurrent


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
