"""The same request with longer completions or larger groups: where the cliffs are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from roost.planner.constants import PUBLISHED, Constants
from roost.planner.layouts import choose
from roost.planner.plan import Plan
from roost.planner.request import Request

Swept = Literal["completion-length", "generations"]
FIELDS: dict[Swept, str] = {
    "completion-length": "completion_tokens",
    "generations": "generations",
}
LONGEST = 131_072
"""Completions are swept up to here where the model's config does not end before."""
LARGEST_GROUP = 512
GRAIN: dict[Swept, int] = {"completion-length": 64, "generations": 1}
"""A cliff is found to within this much."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Plans by value, each in its own best layout, and where they change for the worse."""

    name: Swept
    values: tuple[int, ...]
    plans: tuple[Plan, ...]
    most_that_fits: int | None
    """None where not even the smallest value fits."""
    most_in_one_pass: int | None
    """Up to here the cache holds all rollouts of a step at once; None where it never does."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [
            {"value": value, **plan.as_dict()}
            for value, plan in zip(self.values, self.plans, strict=True)
        ]
        return {
            "sweep": self.name,
            "most_that_fits": self.most_that_fits,
            "most_in_one_pass": self.most_in_one_pass,
            "plans": rows,
        }


def sweep(request: Request, name: Swept, constants: Constants = PUBLISHED) -> Sweep:
    """Plan a request at doubling values, and find between which of them it stops fitting and
    stops being one pass."""
    values = tuple(_values(request, name))

    def plan(value: int) -> Plan:
        return choose(_with(request, name, value), constants)

    plans = tuple(plan(value) for value in values)
    grain = GRAIN[name]
    return Sweep(
        name,
        values,
        plans,
        _cliff(values, [p.fits for p in plans], lambda v: plan(v).fits, grain),
        _cliff(values, [one_pass(p) for p in plans], lambda v: one_pass(plan(v)), grain),
    )


def one_pass(plan: Plan) -> bool:
    """Whether all rollouts of a step are in the cache at once."""
    return plan.fits and plan.value("rollout.passes_per_step") == 1


def _values(request: Request, name: Swept) -> Iterator[int]:
    work = request.workload
    least, most = 2, LARGEST_GROUP
    if name == "completion-length":
        context = request.model.shape.max_positions
        least, most = 256, min(LONGEST, context - work.prompt_tokens if context else LONGEST)
    asked = int(getattr(work, FIELDS[name]))
    doubled = {least << n for n in range(20) if least << n <= most}
    yield from sorted({*doubled, asked, *([most] if most > least else [])})


def _with(request: Request, name: Swept, value: int) -> Request:
    fields: dict[str, Any] = {FIELDS[name]: value}
    if name == "completion-length":
        # An expected length says nothing about completions of another budget.
        fields["mean_completion_tokens"] = None
    return replace(request, workload=replace(request.workload, **fields))


def _cliff(
    values: tuple[int, ...], good: list[bool], is_good: Callable[[int], bool], grain: int
) -> int | None:
    """The largest value that is good, to within a grain; None where the first is not."""
    if not good[0]:
        return None
    if all(good):
        return values[-1]
    first_bad = good.index(False)
    low, high = values[first_bad - 1], values[first_bad]
    while high - low > grain:
        middle = (low + high) // 2 // grain * grain
        middle = middle if middle > low else low + grain
        low, high = (middle, high) if is_good(middle) else (low, middle)
    return low
