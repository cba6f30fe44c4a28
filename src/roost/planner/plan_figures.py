"""Figures that belong to no phase: the model, the card, what a step makes, what it takes."""

from __future__ import annotations

from math import sqrt

from roost.planner.bands import around
from roost.planner.book import Book
from roost.planner.constants import Constants
from roost.planner.engine_memory import EngineMemory
from roost.planner.request import BYTES, Layout, Request
from roost.planner.timing import Seconds
from roost.planner.trainer_memory import TrainerMemory


def model_figures(request: Request, book: Book) -> None:
    """Parameters, and bytes of a token in the cache."""
    model, shape = request.model, request.model.shape
    book.whole(
        "model.parameters",
        shape.parameters,
        "parameters",
        "embedding + head + layers x (linear + norms) + final norm",
        model.source,
        layers=shape.layers,
        hidden=shape.hidden,
        vocabulary=shape.vocabulary,
        tied_embeddings=shape.tied_embeddings,
    )
    width = int(BYTES[request.engine.cache_dtype])
    latent = shape.latent_attention
    book.bytes(
        "model.kv_bytes_per_token",
        width * shape.kv_elements_per_token(),
        "layers x (latent + rotary) x bytes"
        if latent
        else "2 x layers x kv_heads x head_dim x bytes",
        model.source,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        bytes=width,
    )


def card_figure(request: Request, book: Book) -> None:
    """Memory of one card."""
    card = request.hardware.card
    if request.listed:
        formula, field = "the figure on the box x 1e9", "memory_listed_gb"
    else:
        formula, field = "what a process sees of the card", "memory_visible_bytes"
    book.bytes(
        "hardware.card_bytes",
        request.card_bytes,
        formula,
        card.source_of(field),
        card=card.name,
        memory_listed_gb=card.memory_listed_gb,
    )


def room_figures(
    request: Request, layout: Layout, trainer: TrainerMemory, budget: int, book: Book
) -> None:
    """What a card has left for training."""
    resident = sum(term.bytes for term in trainer.resident)
    available = book.bytes(
        "trainer.available_bytes_per_gpu",
        budget,
        "card memory - what the engine keeps of it while training",
        card_bytes=request.card_bytes,
        mode=layout.mode,
        sleep_level=layout.sleep_level,
    )
    book.bytes(
        "trainer.free_bytes_per_gpu",
        available - resident,
        "available_bytes_per_gpu - states, reference and context: left for activations",
        available_bytes_per_gpu=available,
        resident_bytes=resident,
    )
    book.whole(
        "trainer.micro_batch_tokens",
        trainer.micro_batch_tokens,
        "tokens",
        "as asked, or what fits up to 8,192, and one rollout at the least",
    )


def work_figures(request: Request, book: Book) -> None:
    """What a step makes, and what sharing prompts spares."""
    work = request.workload
    rollouts = book.whole(
        "rollout.rollouts_per_step",
        work.rollouts,
        "rollouts",
        "prompts x generations",
        prompts=work.prompts,
        generations=work.generations,
    )
    book.whole(
        "rollout.tokens_per_step",
        rollouts * work.completion_tokens,
        "tokens",
        "rollouts_per_step x completion_length",
        rollouts_per_step=rollouts,
        completion_length=work.completion_tokens,
    )
    book.whole(
        "rollout.tokens_per_rollout",
        work.tokens,
        "tokens",
        "prompt_length + completion_length",
        prompt_length=work.prompt_tokens,
        completion_length=work.completion_tokens,
    )
    prompt, completion, group = work.mean_prompt, work.mean_completion, work.generations
    book.number(
        "trainer.prefix_sharing_gain",
        group * (prompt + completion) / (prompt + group * completion),
        "x",
        "G (P + R) / (P + G R): tokens of a padded forward over those that are computed",
        "each prompt once for all its completions",
        G=group,
        P=prompt,
        R=completion,
    )


def rollout_figures(layout: Layout, engine: EngineMemory, book: Book) -> None:
    """Of all engines together."""
    book.whole(
        "rollout.resident_rollouts_all_engines",
        engine.resident * layout.replicas,
        "rollouts",
        "resident_rollouts x replicas",
        resident_rollouts=engine.resident,
        replicas=layout.replicas,
    )


def step_figures(spent: Seconds, book: Book, constants: Constants) -> None:
    """Seconds of a whole step, and the band that most runs fall in."""
    book.whole(
        "rollout.concurrent_rollouts",
        spent.concurrent,
        "rollouts",
        "min(cache / half-grown rollout, max_num_seqs, rollouts of one engine)",
    )
    total = book.number(
        "step.total_s",
        spent.total,
        "s",
        "generate + logprob + train + sync + sleep_wake",
        generate_s=spent.generate,
        logprob_s=spent.logprob,
        train_s=spent.train,
        sync_s=spent.sync,
        sleep_wake_s=spent.sleep_wake,
    )
    book.number("step.sync_s", spent.sync, "s", "sync.seconds")
    parts = (
        (spent.generate, constants.generate_spread),
        (spent.logprob, constants.logprob_spread),
        (spent.train, constants.train_spread),
        (spent.sync, constants.sync_spread),
        (spent.sleep_wake, constants.sleep_spread),
    )
    # The errors of the phases are independent, so their variances add.
    spread = sqrt(sum((part * wide) ** 2 for part, wide in parts)) / total
    inputs = {"total_s": total, "spread": spread}
    formula = "total_s x exp({} 1.645 x spread): 90 % of runs are expected within low_s and high_s"
    for name, sign, edge in zip(("low_s", "high_s"), "-+", around(total, spread), strict=True):
        book.number(
            f"step.{name}",
            edge,
            "s",
            formula.format(sign),
            constants.source,
            **inputs,
        )
