"""A plan: what a request needs in a layout, every figure with its formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from roost.planner import power
from roost.planner.bands import around
from roost.planner.book import Book
from roost.planner.constants import PUBLISHED, Constants
from roost.planner.engine_memory import EngineMemory, engine_memory, max_sequences
from roost.planner.links import traffic
from roost.planner.phases import phases, training_budget
from roost.planner.request import BYTES, Layout, Request
from roost.planner.terms import Figure, Phase, find_figure, gib, term_figures
from roost.planner.timing import Seconds, seconds
from roost.planner.trainer_memory import TrainerMemory, trainer_memory


@dataclass(frozen=True, slots=True)
class Plan:
    """One request in one layout."""

    request: Request
    layout: Layout
    phases: tuple[Phase, ...]
    engine: EngineMemory
    trainer: TrainerMemory
    seconds: Seconds
    figures: Mapping[str, Figure]
    binding: str
    """What limits the run: a phase that does not fit, or what decoding waits for."""

    @property
    def peak(self) -> Phase:
        """The largest phase."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def headroom_bytes(self) -> int:
        """Left on the fullest card; below 0 where it is too small."""
        return self.request.card_bytes - self.peak.bytes

    @property
    def short_bytes(self) -> int:
        """Bytes that the largest phase lacks, and room for one rollout if there is none."""
        over = -self.headroom_bytes
        if self.engine.resident < 1:
            over = max(over, self.one_rollout_bytes - max(0, self.engine.cache))
        return max(0, over)

    @property
    def one_rollout_bytes(self) -> int:
        """Cache of one rollout at full length, over the cards of an engine."""
        return int(self.figures["rollout.resident_rollouts"].inputs["bytes_per_rollout"] or 0)

    @property
    def fits(self) -> bool:
        """Whether every phase fits its card and the cache holds a rollout."""
        return self.short_bytes == 0 and self.engine.cache > 0

    @property
    def resident_in_all(self) -> int:
        """Rollouts of a step that decode at once, all engines together."""
        return min(self.engine.resident * self.layout.replicas, self.request.workload.rollouts)

    def value(self, name: str) -> int | float:
        """One figure."""
        return self.figures[name].value

    def explain(self, name: str) -> Figure:
        """A figure or a phase's term with its formula, inputs and source.

        Args:
            name: Its path in the JSON; of a term ``phases.PHASE`` or ``phases.PHASE.TERM``.

        Raises:
            ConfigError: there is no such figure.
        """
        room = {"card_bytes": self.request.card_bytes, "peak_bytes": self.peak.bytes}
        spare = Figure(
            "headroom_bytes",
            self.headroom_bytes,
            "bytes",
            "card memory - the largest phase",
            room,
        )
        figures = {**self.figures, **term_figures(self.phases), spare.name: spare}
        return find_figure(figures, name)

    def problem(self) -> str | None:
        """Why it does not fit, in one sentence; None where it does."""
        if self.fits:
            return None
        if self.peak.bytes > self.request.card_bytes:
            term = max(self.peak.terms, key=lambda term: term.bytes)
            return (
                f"the {self.peak.name} phase needs {gib(self.peak.bytes)} of a card that has "
                f"{gib(self.request.card_bytes)}, {gib(self.short_bytes)} short; its largest part "
                f"is {term.name}, {gib(term.bytes)}"
            )
        return (
            f"the engine's share of {gib(self.engine.share)} leaves "
            f"{gib(max(0, self.engine.cache))} for the cache, and one rollout needs "
            f"{gib(self.one_rollout_bytes)}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON: sections of plain figures, and the layout."""
        out: dict[str, Any] = {
            "convention": self.request.convention,
            "fits": self.fits,
            "problem": self.problem(),
            "headroom_bytes": self.headroom_bytes,
            "chosen": list(self.request.chosen),
            "layout": _layout_dict(self.layout),
            "model": {"name": self.request.model.name, "source": self.request.model.source},
            "hardware": _hardware_dict(self.request),
        }
        for name, figure in self.figures.items():
            section, _, key = name.rpartition(".")
            out.setdefault(section, {})[key] = figure.value
        out["phases"] = [_phase_dict(phase) for phase in self.phases]
        out["binding"] = self.binding
        return out


def make_plan(request: Request, layout: Layout, constants: Constants = PUBLISHED) -> Plan:
    """Compute the plan of a layout."""
    book = Book()
    _model_figures(request, book)
    _card_figure(request, book)
    budget = training_budget(request, layout)
    trainer = trainer_memory(request, layout, book, budget)
    engine = engine_memory(request, layout, book)
    _room_figures(request, layout, trainer, budget, book)
    _work_figures(request, book)
    _rollout_figures(layout, engine, book)
    links = traffic(request, layout, trainer, book, constants)
    spent = seconds(request, layout, engine, links, book, constants)
    _step_figures(request, spent, book, constants)
    watts = power.power(request.hardware, book)
    power.cost(request.hardware, watts, spent.total, book)
    held = phases(request, layout, engine, trainer)
    return Plan(
        request,
        layout,
        held,
        engine,
        trainer,
        spent,
        book.figures,
        _binding(request, layout, held, engine, spent),
    )


def _model_figures(request: Request, book: Book) -> None:
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


def _card_figure(request: Request, book: Book) -> None:
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


def _room_figures(
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


def _work_figures(request: Request, book: Book) -> None:
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


def _rollout_figures(layout: Layout, engine: EngineMemory, book: Book) -> None:
    """Of all engines together."""
    book.whole(
        "rollout.resident_rollouts_all_engines",
        engine.resident * layout.replicas,
        "rollouts",
        "resident_rollouts x replicas",
        resident_rollouts=engine.resident,
        replicas=layout.replicas,
    )


def _step_figures(request: Request, spent: Seconds, book: Book, constants: Constants) -> None:
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


def _binding(
    request: Request,
    layout: Layout,
    held: tuple[Phase, ...],
    engine: EngineMemory,
    spent: Seconds,
) -> str:
    peak = max(held, key=lambda phase: phase.bytes)
    if peak.bytes > request.card_bytes:
        return f"memory: {peak.name} phase"
    if engine.resident < 1:
        return "memory: key-value cache"
    slowest = max(
        ("generate", spent.generate),
        ("train", spent.train),
        ("sync", spent.sync),
        ("sleep and wake", spent.sleep_wake),
        ("log-probabilities", spent.logprob),
        key=lambda pair: pair[1],
    )[0]
    if slowest != "generate":
        return slowest
    if spent.passes > 1:
        capped = max_sequences(request, layout) < engine.resident
        return "generate: max_num_seqs" if capped else "generate: key-value cache"
    return f"generate: {spent.decode.bound}"


def _layout_dict(layout: Layout) -> dict[str, Any]:
    return {
        "mode": layout.mode,
        "trainer": {"gpus": layout.trainer_gpus, "strategy": layout.strategy},
        "rollout": {
            "gpus": layout.rollout_gpus,
            "tensor_parallel": layout.tensor_parallel,
            "replicas": layout.replicas,
        },
        "sleep_level": layout.sleep_level,
        "gpu_memory_utilization": layout.utilization,
    }


def _hardware_dict(request: Request) -> dict[str, Any]:
    hardware = request.hardware
    return {
        "card": hardware.card.name,
        "gpus": hardware.gpus,
        "gpus_per_node": hardware.gpus_per_node,
        "nodes": hardware.nodes,
        "processor": power.processor_for(hardware).name,
        "source": hardware.card.source_of(
            "memory_listed_gb" if request.listed else "memory_visible_bytes"
        ),
        "unverified": list(hardware.card.unverified),
    }


def _phase_dict(phase: Phase) -> dict[str, Any]:
    return {
        "name": phase.name,
        "cards": phase.cards,
        "bytes": phase.bytes,
        "terms": [
            {"name": t.name, "bytes": t.bytes, "formula": t.formula, "source": t.source}
            for t in phase.terms
        ],
    }
