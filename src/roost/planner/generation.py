"""Seconds that decoding a step's rollouts takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from roost.planner.bands import around
from roost.planner.book import Book
from roost.planner.constants import Constants
from roost.planner.decode import DecodeStep, decode_step, payload_seconds, peak_flops
from roost.planner.engine_memory import BLOCK, EngineMemory, engine_rollouts, max_sequences
from roost.planner.request import BYTES, Layout, Request


@dataclass(frozen=True, slots=True)
class Generation:
    """Of one engine; engines work at the same time."""

    seconds: float
    step: DecodeStep
    """One decode step of ``concurrent`` rollouts at half of their completion."""
    passes: int
    """How often the cache is filled, at full length."""
    concurrent: int
    """Rollouts that decode at once, half grown."""


def generation(
    request: Request, layout: Layout, engine: EngineMemory, book: Book, constants: Constants
) -> Generation:
    """Plan the time that an engine takes for its rollouts."""
    work = request.workload
    rollouts = engine_rollouts(request, layout)
    passes = _passes(layout, engine, rollouts, book)
    # A rollout grows as it decodes, so on average half of its completion is in the cache.
    context = work.mean_prompt + work.mean_completion / 2
    concurrent = _concurrent(request, layout, engine, rollouts, context)
    step = decode_step(request, layout, constants, concurrent, context)
    _note_step(step, book, constants)
    prefill = _prefill_seconds(request, layout, constants)
    waves = max(1.0, rollouts / concurrent)
    steps = max(float(work.completion_tokens), waves * work.mean_completion)
    fixed = max(step.weights, step.arithmetic) + step.launches + step.allreduce
    grown = rollouts * work.mean_completion * (step.cache + step.sequences) / concurrent
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
        mean_context=context,
        weights_s=step.weights,
        arithmetic_s=step.arithmetic,
        launches_s=step.launches,
        allreduce_s=step.allreduce,
        cache_s=step.cache,
        sampler_s=step.sequences,
        prefill_s=prefill,
    )
    _note_band(total, book, constants)
    return Generation(total, step, passes, concurrent)


def _passes(layout: Layout, engine: EngineMemory, rollouts: int, book: Book) -> int:
    return book.whole(
        "rollout.passes_per_step",
        ceil(rollouts / max(1, min(engine.resident, rollouts))),
        "passes",
        "ceil(rollouts of one engine / resident_rollouts)",
        rollouts_of_one_engine=rollouts,
        resident_rollouts=engine.resident,
        replicas=layout.replicas,
    )


def _concurrent(
    request: Request, layout: Layout, engine: EngineMemory, rollouts: int, context: float
) -> int:
    """Rollouts of mean length ``context`` that the cache holds, whole blocks each."""
    places = ceil(context / BLOCK) * BLOCK
    width = BYTES[request.engine.cache_dtype]
    one = request.model.shape.kv_elements(places, layout.tensor_parallel) * width
    fit = int(max(0, engine.cache) / layout.tensor_parallel // one)
    return max(1, min(fit, max_sequences(request, layout), rollouts))


def _prefill_seconds(request: Request, layout: Layout, constants: Constants) -> float:
    """Each prompt of an engine once: arithmetic, and two all-reduces a layer."""
    work, shape = request.workload, request.model.shape
    tokens = work.prompts / layout.replicas * work.mean_prompt
    peak = peak_flops(request.hardware.card)
    flops = peak * constants.prefill_efficiency * layout.tensor_parallel
    payload = payload_seconds(request, layout.tensor_parallel, tokens, constants)
    return 2 * shape.multiplied_parameters * tokens / flops + 2 * shape.layers * payload


def _note_step(step: DecodeStep, book: Book, constants: Constants) -> None:
    book.number(
        "rollout.decode_step_s",
        step.total,
        "s",
        "max(weights, arithmetic) + cache + launches + all-reduce + sequences, of the concurrent "
        "rollouts at half of their completion",
        constants.source,
        weights_s=step.weights,
        arithmetic_s=step.arithmetic,
        cache_s=step.cache,
        launches_s=step.launches,
        allreduce_s=step.allreduce,
        sequences_s=step.sequences,
    )


def _note_band(total: float, book: Book, constants: Constants) -> None:
    """The band that 90 % of runs are expected in."""
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
