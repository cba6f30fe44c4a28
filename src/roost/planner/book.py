"""Where a plan writes down its figures as it computes them."""

from __future__ import annotations

from roost.planner.terms import Figure, Value


class Book:
    """The figures of one plan, by their path in its JSON."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}

    def whole(
        self, name: str, value: int, unit: str, formula: str, source: str = "", **inputs: Value
    ) -> int:
        """Write down a whole number and hand it back."""
        self.figures[name] = Figure(name, int(value), unit, formula, inputs, source)
        return int(value)

    def bytes(self, name: str, value: int, formula: str, source: str = "", **inputs: Value) -> int:
        """Write down a number of bytes and hand it back."""
        return self.whole(name, value, "bytes", formula, source, **inputs)

    def number(
        self, name: str, value: float, unit: str, formula: str, source: str = "", **inputs: Value
    ) -> float:
        """Write down a measure and hand it back."""
        self.figures[name] = Figure(name, float(value), unit, formula, inputs, source)
        return float(value)
