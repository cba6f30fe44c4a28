"""Figures that can say where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from roost.errors import ConfigError, did_you_mean

Value = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One derived number: its formula, what went into it, and who says the formula holds."""

    name: str
    """Its path in the plan's JSON, as in ``rollout.resident_rollouts``."""
    value: int | float
    unit: str
    formula: str
    inputs: Mapping[str, Value] = field(default_factory=dict)
    source: str = ""

    def lines(self) -> list[str]:
        """The explanation that ``--explain`` prints."""
        shown = f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:.6g}"
        out = [f"{self.name} = {shown} {self.unit}".rstrip(), f"  formula: {self.formula}"]
        if self.inputs:
            out.append("  inputs:")
            out += [f"    {key} = {_show(value)}" for key, value in self.inputs.items()]
        if self.source:
            out.append(f"  source: {self.source}")
        return out


@dataclass(frozen=True, slots=True)
class Term:
    """Some bytes and why."""

    name: str
    bytes: int
    formula: str
    inputs: Mapping[str, Value] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class Phase:
    """What one card holds at once."""

    name: str
    terms: tuple[Term, ...]
    cards: str = "all"
    """Which cards: ``all``, ``trainer`` or ``rollout``."""

    @cached_property
    def bytes(self) -> int:
        """Sum of the terms."""
        return sum(term.bytes for term in self.terms)


def term_figures(phases: Iterable[Phase]) -> dict[str, Figure]:
    """Phases and their terms as figures: ``phases.PHASE`` and ``phases.PHASE.TERM``."""
    out = {}
    for phase in phases:
        path = f"phases.{phase.name}"
        inputs = {term.name: term.bytes for term in phase.terms}
        out[path] = Figure(path, phase.bytes, "bytes", "sum of its terms", inputs)
        for term in phase.terms:
            key = f"{path}.{term.name.lower().replace(' ', '_')}"
            out[key] = Figure(key, term.bytes, "bytes", term.formula, term.inputs, term.source)
    return out


def find_figure(figures: Mapping[str, Figure], name: str) -> Figure:
    """A figure by its path.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    if name not in figures:
        raise ConfigError(
            f"--explain {name!r}: the plan has no such figure.{did_you_mean(name, figures)}"
            " --json lists them all."
        )
    return figures[name]


def gib(count: float) -> str:
    """Bytes as a person reads them on a card."""
    return f"{count / 2**30:.2f} GiB"


def _show(value: Value) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
