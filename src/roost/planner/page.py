"""A plan as one HTML file that needs nothing else: figures, and each card's memory by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from roost.planner.plan import Plan
from roost.planner.terms import Phase, Term, gib

WIDTH, ROW, LABEL = 860, 46, 90
COLORS = {
    "trainer states": "#1f5aa6",
    "reference": "#5b8fd1",
    "engine weights": "#b3541e",
    "key-value cache": "#c07a12",
    "engine share": "#d9893a",
    "engine activations": "#8c6d46",
    "activations": "#2e8b57",
    "logits": "#c23b3b",
    "log-probabilities": "#7fbf9a",
    "gathered layers": "#6b5bb5",
    "gradient to scatter": "#9d8fd6",
    "CUDA graphs": "#a08c5b",
    "sleeping engine": "#c9b79c",
    "fragmentation": "#b8c4cc",
}
OTHER = "#8a939b"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem;
  color: #1c2429; background: #fff }
h1 { font-size: 1.4rem; margin: 2.5rem 0 .2rem } h2 { font-size: 1rem; margin: 1.6rem 0 .3rem }
.yes { color: #1d7a43; font-weight: 600 } .no { color: #b3261e; font-weight: 600 }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .2rem .8rem
  .2rem 0; border-bottom: 1px solid #e4e8eb; vertical-align: top } td.n { text-align: right;
  white-space: nowrap } svg { width: 100%; height: auto } svg text { font: 12px system-ui,
  sans-serif } small { color: #5d6a73 } .key { display: inline-block; width: .8em; height: .8em;
  margin-right: .4em }
"""


class Cards(NamedTuple):
    """Cards of a plan that hold the same."""

    title: str
    phases: tuple[Phase, ...]


def page(plans: Sequence[Plan]) -> str:
    """The page of one plan, or of several one below the other."""
    title = escape(f"Roost plan: {plans[0].request.model.name}")
    body = "\n".join(section for plan in plans for section in _sections(plan))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def card_groups(plan: Plan) -> list[Cards]:
    """Which cards hold what: all alike when colocated, trainers and engines apart in a server."""
    layout = plan.layout
    if layout.mode == "colocate":
        return [Cards(f"Each of the {layout.trainer_gpus} cards", plan.phases)]
    return [
        Cards(
            f"{'Trainer' if kind == 'trainer' else 'Engine'} cards ({count})",
            tuple(phase for phase in plan.phases if phase.cards in (kind, "all")),
        )
        for kind, count in (("trainer", layout.trainer_gpus), ("rollout", layout.rollout_gpus))
    ]


def _sections(plan: Plan) -> Iterator[str]:
    hardware = plan.request.hardware
    yield (
        f"<h1>{escape(plan.request.model.name)} on {hardware.gpus} x "
        f"{escape(hardware.card.name)}</h1>"
    )
    if plan.fits:
        yield f'<p><span class="yes">Fits</span>, {gib(plan.headroom_bytes)} to spare.</p>'
    else:
        yield f'<p><span class="no">Does not fit</span>: {escape(plan.problem() or "")}.</p>'
    for cards in card_groups(plan):
        yield f"<h2>{escape(cards.title)}</h2>"
        yield memory_svg(cards.phases, plan.request.card_bytes)
    yield _terms(plan)
    yield _figures(plan)


def memory_svg(phases: Sequence[Phase], card: int) -> str:
    """A bar for each phase, a piece for each term, and a line where the card ends."""
    most = max(card, *(phase.bytes for phase in phases))
    scale = (WIDTH - LABEL - 10) / most
    edge = LABEL + card * scale
    height = ROW * len(phases) + 24
    rows = "".join(_bar(phase, number, scale) for number, phase in enumerate(phases))
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="memory by phase">{rows}'
        f'<line x1="{edge:.1f}" x2="{edge:.1f}" y1="0" y2="{height - 18}" stroke="#1c2429" '
        f'stroke-dasharray="4 3"/><text x="{edge:.1f}" y="{height - 4}" text-anchor="end">'
        f"card {gib(card)}</text></svg>"
    )


def _bar(phase: Phase, number: int, scale: float) -> str:
    top = ROW * number + 6
    out = [f'<text x="0" y="{top + 20}">{escape(phase.name)}</text>']
    x = float(LABEL)
    for term in phase.terms:
        width = term.bytes * scale
        label = escape(f"{term.name}: {gib(term.bytes)}")
        out.append(
            f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{ROW - 14}" '
            f'fill="{color(term)}"><title>{label}</title></rect>'
        )
        if width > 7 * len(term.name):
            out.append(
                f'<text x="{x + 5:.1f}" y="{top + 20}" fill="#fff">{escape(term.name)}</text>'
            )
        x += width
    return "".join(out)


def color(term: Term) -> str:
    """The color of a term, the same in every phase."""
    return COLORS.get(term.name, OTHER)


def _terms(plan: Plan) -> str:
    rows = []
    for phase in plan.phases:
        rows.append(
            f'<tr><th>{escape(phase.name)}</th><td class="n"><b>{gib(phase.bytes)}</b></td>'
            f"<td><small>{escape(phase.cards)} cards</small></td></tr>"
        )
        rows += [
            f'<tr><td><span class="key" style="background:{color(term)}"></span>'
            f'{escape(term.name)}</td><td class="n">{gib(term.bytes)}</td>'
            f"<td><small>{escape(term.formula)}</small></td></tr>"
            for term in phase.terms
        ]
    return f"<h2>Memory by phase</h2><table>{''.join(rows)}</table>"


def _figures(plan: Plan) -> str:
    rows = []
    for figure in plan.figures.values():
        whole = isinstance(figure.value, int)
        shown = f"{figure.value:,}" if whole else f"{figure.value:,.4g}"
        rows.append(
            f'<tr><td>{escape(figure.name)}</td><td class="n">{shown} {escape(figure.unit)}</td>'
            f"<td><small>{escape(figure.formula)}</small></td></tr>"
        )
    return f"<h2>Figures</h2><table>{''.join(rows)}</table>"
