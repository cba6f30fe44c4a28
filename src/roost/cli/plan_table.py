"""A plan as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from roost.cli.plan_request import chosen_values
from roost.planner.notes import notes
from roost.planner.plan import Plan
from roost.planner.suggestions import Suggestion
from roost.planner.terms import Phase, gib

BAR = 16
"""Columns of a bar that stands for a whole card."""
PARTS = 2
"""Terms of a phase that are named."""


def print_plan(plan: Plan, changes: Sequence[Suggestion]) -> None:
    """Print one plan."""
    console = Console(highlight=False)
    print_head(plan, console)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, text in _rows(plan):
        table.add_row(name, text)
    for change in changes:
        table.add_row("try", escape(suggestion_text(change)))
    for note in notes(plan):
        table.add_row("note", escape(note))
    console.print(table)
    chosen = " ".join(_option(name, value) for name, value in chosen_values(plan).items())
    if chosen:
        console.print(f"[dim]* was left out, so the plan chose: {escape(chosen)}[/dim]")


def _option(name: str, value: object) -> str:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return flag if value else f"--no-{flag[2:]}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f'{flag} "{text}"' if " " in text else f"{flag} {text}"


def print_head(plan: Plan, console: Console) -> None:
    """What is planned, on what, and whether it fits."""
    request = plan.request
    hardware = request.hardware
    cards = f"{hardware.gpus} x {hardware.card.name}"
    cards += f" on {hardware.nodes} nodes" if hardware.nodes > 1 else ""
    memory = f"{gib(request.card_bytes)} each, {request.convention}"
    console.print(f"{subject(plan)} on {escape(cards)} ({memory})")
    if plan.fits:
        spare = gib(plan.headroom_bytes)
        console.print(f"[bold green]fits[/bold green], {spare} to spare on the fullest card")
    else:
        console.print(f"[bold red]does not fit[/bold red]: {escape(plan.problem() or '')}")


def subject(plan: Plan) -> str:
    """The model and how it is trained."""
    training = plan.request.training
    rank = "" if training.method == "full" else f" rank {training.lora_rank}"
    name = escape(plan.request.model.name)
    return f"[bold]{name}[/bold], {training.method}{rank}, {training.dtype}"


def suggestion_text(change: Suggestion) -> str:
    """A change, its option and what it brings."""
    return (
        f"{change.change} ({change.flags}): {seconds(change.total_s)} a step, "
        f"{gib(change.headroom_bytes)} to spare"
    )


def layout_text(plan: Plan) -> str:
    """Who sits on which card, with a star at what the plan chose."""
    layout = plan.layout

    def star(flag: str) -> str:
        return "*" if flag in plan.request.chosen else ""

    engines = f"{layout.replicas} engine{'s' if layout.replicas > 1 else ''}{star('--replicas')}"
    many = "card" if layout.tensor_parallel == 1 else "cards each"
    over = f" over {layout.tensor_parallel}{star('--tensor-parallel')} {many}"
    share = f"{layout.utilization:g}{star('--gpu-memory-utilization')} of a card"
    trainer = f"trainer {layout.strategy}{star('--strategy')} on {layout.trainer_gpus}"
    sleep = ""
    if layout.mode == "colocate":
        sleep = f", sleep level {layout.sleep_level}{star('--sleep-level')}"
    return f"{layout.mode}{star('--mode')}: {trainer}, {engines}{over}, {share}{sleep}"


def _rows(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "layout", escape(layout_text(plan))
    for number, phase in enumerate(plan.phases):
        yield ("memory" if number == 0 else ""), phase_row(phase, plan.request.card_bytes)
    yield "rollouts", _rollouts(plan)
    yield "step", _step(plan)
    yield "binds", escape(plan.binding)
    yield "power", _power(plan)
    gain = plan.value("trainer.prefix_sharing_gain")
    yield "sharing", f"each prompt once saves {gain:.2f} x tokens: G (P + R) / (P + G R)"


def phase_row(phase: Phase, card: int) -> str:
    """A bar for a phase, with its largest parts."""
    filled = min(BAR, round(BAR * phase.bytes / card))
    color = "red" if phase.bytes > card else "green"
    bar = f"[{color}]{'█' * filled}[/{color}][dim]{'░' * (BAR - filled)}[/dim]"
    largest = sorted(phase.terms, key=lambda term: -term.bytes)[:PARTS]
    parts = ", ".join(f"{term.name} {term.bytes / 2**30:.1f}" for term in largest if term.bytes)
    return f"{phase.name:8} {bar} {gib(phase.bytes):>11}  [dim]{escape(parts)}[/dim]"


def _rollouts(plan: Plan) -> str:
    work = plan.request.workload
    passes = int(plan.value("rollout.passes_per_step"))
    return (
        f"{work.rollouts} a step ({work.prompts} prompts x {work.generations}), {work.tokens:,} "
        f"tokens each at most; {plan.value('rollout.resident_rollouts_all_engines')} fit the cache "
        f"at full length: {passes} pass{'es' if passes > 1 else ''}"
    )


def _step(plan: Plan) -> str:
    spent = plan.seconds
    parts = {
        "generate": spent.generate,
        "log-probabilities": spent.logprob,
        "train": spent.train,
        "sync": spent.sync,
        "sleep and wake": spent.sleep_wake,
    }
    shown = " + ".join(f"{name} {seconds(value)}" for name, value in parts.items() if value)
    low, high = plan.value("step.low_s"), plan.value("step.high_s")
    return f"{seconds(spent.total)} ({seconds(low)} to {seconds(high)}): {shown}"


def _power(plan: Plan) -> str:
    text = (
        f"{plan.value('power.watts_at_wall') / 1000:.2f} kW at the wall at most, "
        f"{plan.value('cost.energy_wh_per_step'):.1f} Wh a step"
    )
    if "cost.per_step" in plan.figures:
        text += (
            f"; cost {plan.value('cost.per_hour'):.2f} an hour, "
            f"{plan.value('cost.per_step'):.4f} a step"
        )
    return text


def seconds(value: float) -> str:
    """Seconds with three digits."""
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"
