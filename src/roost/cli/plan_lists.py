"""Several plans beside each other as a person reads them: a search, a comparison, a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from roost.cli.plan_table import seconds, subject
from roost.planner.plan import Plan
from roost.planner.search import Order, ranked
from roost.planner.sweeps import Sweep
from roost.planner.terms import gib

SHOWN = 12
"""Layouts of a search that are printed; --json has them all."""
BAR = 24
NARROW = ("layout", "step", "to spare", "tokens/s")
"""Columns that are never broken."""


def print_search(plans: Sequence[Plan], order: Order) -> None:
    """Print the layouts that fit, with their rank by each order."""
    console = Console(highlight=False)
    console.print(_head(plans[0]))
    ranks = {name: _ranks(plans, name) for name in ("time", "headroom", "cost")}
    table = _table("layout", "step", "to spare", "at once", "cards x s", *ranks)
    for plan in plans[:SHOWN]:
        table.add_row(
            short_layout(plan),
            seconds(plan.seconds.total),
            gib(plan.headroom_bytes),
            str(plan.resident_in_all),
            f"{plan.seconds.total * plan.request.hardware.gpus:.0f}",
            *(str(ranked_here[id(plan)]) for ranked_here in ranks.values()),
        )
    console.print(table)
    more = len(plans) - SHOWN
    rest = f"; {more} more with --json" if more > 0 else ""
    console.print(f"[dim]by {order}; the last three columns are ranks{rest}[/dim]")


def _head(plan: Plan) -> str:
    hardware = plan.request.hardware
    return f"{subject(plan)} on {hardware.gpus} x {escape(hardware.card.name)}"


def _ranks(plans: Sequence[Plan], order: Order) -> dict[int, int]:
    return {id(plan): place for place, plan in enumerate(ranked(plans, order), 1)}


def short_layout(plan: Plan) -> str:
    """A layout in a few characters."""
    layout = plan.layout
    engines = f"tp {layout.tensor_parallel} x {layout.replicas}"
    if layout.mode == "server":
        return f"server {layout.trainer_gpus} {layout.strategy} + {engines}"
    sleep = f" sleep {layout.sleep_level}" if layout.sleep_level else ""
    return f"colocate {layout.strategy}, {engines}, {layout.utilization:g}{sleep}"


ROWS: dict[str, Callable[[Plan], str]] = {
    "cards": lambda p: str(p.request.hardware.gpus),
    "memory each": lambda p: gib(p.request.card_bytes),
    "fits": lambda p: "[green]yes[/green]" if p.fits else "[red]no[/red]",
    "to spare": lambda p: gib(p.headroom_bytes),
    "layout": lambda p: escape(short_layout(p)),
    "rollouts at once": lambda p: str(p.resident_in_all),
    "passes": lambda p: str(p.value("rollout.passes_per_step")),
    "step": lambda p: seconds(p.seconds.total),
    "range": lambda p: f"{seconds(p.value('step.low_s'))} to {seconds(p.value('step.high_s'))}",
    "generate": lambda p: seconds(p.seconds.generate),
    "train": lambda p: seconds(p.seconds.train),
    "binds": lambda p: escape(p.binding),
    "at the wall": lambda p: f"{p.value('power.watts_at_wall') / 1000:.2f} kW",
    "energy a step": lambda p: f"{p.value('cost.energy_wh_per_step'):.1f} Wh",
}


def print_compare(plans: Sequence[Plan]) -> None:
    """Print the same request on several cards, a column each."""
    console = Console(highlight=False)
    console.print(subject(plans[0]))
    table = _table("", *(plan.request.hardware.card.name for plan in plans))
    for name, cell in ROWS.items():
        table.add_row(name, *(cell(plan) for plan in plans))
    if any("cost.per_step" in plan.figures for plan in plans):
        costs = [plan.figures.get("cost.per_step") for plan in plans]
        table.add_row("cost a step", *("" if c is None else f"{c.value:.4f}" for c in costs))
    console.print(table)


def print_sweep(swept: Sweep) -> None:
    """Print a sweep with a bar for the completion tokens of a second."""
    console = Console(highlight=False)
    console.print(_head(swept.plans[0]))
    rates = [_rate(plan) for plan in swept.plans]
    table = _table(swept.name, "at once", "passes", "step", "tokens/s", "")
    for value, plan, rate in zip(swept.values, swept.plans, rates, strict=True):
        if not plan.fits:
            bar = f"[red]does not fit: {gib(plan.short_bytes)} short[/red]"
            table.add_row(f"{value:,}", "-", "-", "-", "-", bar)
            continue
        filled = max(1, round(BAR * rate / max(rates)))
        table.add_row(
            f"{value:,}",
            str(plan.resident_in_all),
            str(plan.value("rollout.passes_per_step")),
            seconds(plan.seconds.total),
            f"{rate:,.0f}",
            f"[green]{'█' * filled}[/green]",
        )
    console.print(table)
    for line in cliffs(swept):
        console.print(line)


def _rate(plan: Plan) -> float:
    work = plan.request.workload
    return work.rollouts * work.mean_completion / plan.seconds.total if plan.fits else 0.0


def cliffs(swept: Sweep) -> list[str]:
    """Where a sweep changes for the worse, in sentences."""
    end = swept.values[-1]
    out = []
    for what, most in (
        ("it fits", swept.most_that_fits),
        ("the cache holds every rollout of a step at once", swept.most_in_one_pass),
    ):
        if most is None:
            out.append(f"At no {swept.name} from {swept.values[0]:,} on {what}.")
        elif most == end:
            out.append(f"At every {swept.name} up to {end:,} {what}.")
        else:
            out.append(f"Up to {swept.name} {most:,} {what}; beyond that no longer.")
    return out


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in names:
        table.add_column(name, no_wrap=name in NARROW)
    return table
