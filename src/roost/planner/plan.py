"""A plan: what a request needs in a layout, every figure with its formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roost.planner import plan_figures, power
from roost.planner.binding import binding
from roost.planner.book import Book
from roost.planner.constants import PUBLISHED, Constants
from roost.planner.engine_memory import EngineMemory, engine_memory
from roost.planner.links import traffic
from roost.planner.phases import phases, training_budget
from roost.planner.plan_json import hardware_json, layout_json, phase_json
from roost.planner.request import Layout, Request
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
            "layout": layout_json(self.layout),
            "model": {"name": self.request.model.name, "source": self.request.model.source},
            "hardware": hardware_json(self.request),
        }
        for name, figure in self.figures.items():
            section, _, key = name.rpartition(".")
            out.setdefault(section, {})[key] = figure.value
        out["phases"] = [phase_json(phase) for phase in self.phases]
        out["binding"] = self.binding
        return out


def make_plan(request: Request, layout: Layout, constants: Constants = PUBLISHED) -> Plan:
    """Compute the plan of a layout."""
    book = Book()
    plan_figures.model_figures(request, book)
    plan_figures.card_figure(request, book)
    budget = training_budget(request, layout)
    trainer = trainer_memory(request, layout, book, budget)
    engine = engine_memory(request, layout, book)
    plan_figures.room_figures(request, layout, trainer, budget, book)
    plan_figures.work_figures(request, book)
    plan_figures.rollout_figures(layout, engine, book)
    links = traffic(request, layout, trainer, book, constants)
    spent = seconds(request, layout, engine, links, book, constants)
    plan_figures.step_figures(spent, book, constants)
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
        binding(request, layout, held, engine, spent),
    )
