"""Figures that can say where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

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


def gib(count: float) -> str:
    """Bytes as a person reads them on a card."""
    return f"{count / 2**30:.2f} GiB"


def _show(value: Value) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
