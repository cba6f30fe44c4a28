"""Recomputes a hardware guide for GRPO with `roost plan`.

    python benchmarks/hardware_guide.py > docs/hardware-guide.md

The guide's figures are in tests/planner/data/guide_numbers.json; guide_plans.toml beside it says
which plan each of them speaks of.
"""

from __future__ import annotations

import io
import json
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from roost.bench.tables import table
from roost.cli.main import main
from roost.planner.cards import registry

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "planner" / "data"
NUMBERS = json.loads((DATA / "guide_numbers.json").read_text("utf-8"))
PLANS = tomllib.loads((DATA / "guide_plans.toml").read_text("utf-8"))
UNITS = {"1e9 params": "1e9", "GB per card": "GB", "rollouts": "", "tokens": "", "bytes": "B"}
FULL_32B = '--model Qwen3-32B --gpu "{}" --gpus {} --method full'
RECIPES = ("guide-8b-two-cards", "guide-32b-four-cards", "guide-70b-eight-cards")


@cache
def plan(options: str) -> dict[str, Any]:
    output = io.StringIO()
    with redirect_stdout(output):
        main(["plan", *shlex.split(options), "--json"])
    return json.loads(output.getvalue())


def command(options: str) -> str:
    return f"`roost plan {options}`"


def value(where: dict[str, Any], convention: str) -> float:
    found = plan(f"{PLANS['plans'][where['plan']]} {PLANS['step']} --convention {convention}")
    section, key = where["path"].split(".")
    divisor = where.get("unit", 1)
    if "per" in where:
        other, field = where["per"].split(".")
        divisor = found[other][field]
    return found[section][key] / divisor


def shown(number: float) -> str:
    if float(number).is_integer():
        return f"{number:,.0f}"
    return f"{number:,.2f}" if abs(number) >= 1 else f"{number:.3g}"


def figures() -> str:
    rows: list[dict[str, object]] = []
    for number in NUMBERS["numbers"]:
        where = PLANS["figures"].get(number["name"])
        if where is None:
            continue
        unit = UNITS.get(number["unit"], number["unit"])
        rows.append(
            {
                "figure": f"`{where['path']}`" + (f" / `{where['per']}`" if "per" in where else ""),
                "plan": where["plan"],
                "guide": f"{number['expected_as_printed']:,} {unit}".strip(),
                "listed": shown(value(where, "listed")),
                "visible": shown(value(where, "visible")),
            }
        )
    return table(rows)


def rollouts() -> str:
    rows: list[dict[str, object]] = []
    for row in NUMBERS["unprinted_table"]:
        name = PLANS["rollouts"][row["name"]]
        found = [
            plan(f"{PLANS['plans'][name]} {PLANS['step']} --convention {convention}")["rollout"]
            for convention in ("listed", "visible")
        ]
        rows.append(
            {
                "layout": row["name"],
                "plan": name,
                "guide": row["rollouts_floor"],
                "listed": found[0]["resident_rollouts"],
                "visible": found[1]["resident_rollouts"],
                "cache listed, GB": f"{found[0]['kv_cache_bytes'] / 1e9:.1f}",
                "cache visible, GB": f"{found[1]['kv_cache_bytes'] / 1e9:.1f}",
            }
        )
    return table(rows)


def full_32b() -> str:
    rows: list[dict[str, object]] = []
    for card, gpus in (("RTX PRO 6000", 4), ("RTX PRO 6000", 8), ("H200 NVL", 4), ("H200 NVL", 8)):
        for convention in ("listed", "visible"):
            found = plan(f"{FULL_32B.format(card, gpus)} --convention {convention}")
            layout = found["layout"]
            rows.append(
                {
                    "cards": f"{gpus} x {card}",
                    "convention": convention,
                    "fits": "yes" if found["fits"] else "no",
                    "states a card, GB": f"{found['trainer']['state_bytes_per_gpu'] / 1e9:.1f}",
                    "to spare, GB": f"{found['headroom_bytes'] / 1e9:.1f}",
                    "layout": f"{layout['mode']} {layout['trainer']['strategy']}, tensor parallel "
                    f"{layout['rollout']['tensor_parallel']}, sleep {layout['sleep_level']}",
                }
            )
    return table(rows)


def cards() -> str:
    rows: list[dict[str, object]] = []
    for card in registry().cards.values():
        if card.memory_visible_bytes is None:
            continue
        rows.append(
            {
                "card": card.name,
                "listed, 1e9 B": f"{card.memory_listed_gb:g}",
                "visible, 1e9 B": f"{card.visible_bytes / 1e9:.1f}",
                "visible, GiB": f"{card.visible_bytes / 2**30:.2f}",
                "more or less": f"{card.visible_bytes / card.listed_bytes - 1:+.1%}",
            }
        )
    return table(rows)


def recipes() -> str:
    rows: list[dict[str, object]] = []
    for name in RECIPES:
        for convention in ("listed", "visible"):
            found = plan(f"{ROOT / 'recipes' / name}.toml --convention {convention}")
            step, rollout = found["step"], found["rollout"]
            rows.append(
                {
                    "recipe": f"`recipes/{name}.toml`",
                    "convention": convention,
                    "fits": "yes" if found["fits"] else "no",
                    "to spare, GB": f"{found['headroom_bytes'] / 1e9:.1f}",
                    "rollouts at once": rollout["resident_rollouts_all_engines"],
                    "passes": rollout["passes_per_step"],
                    "step, s (90 % band)": f"{step['total_s']:.0f} "
                    f"({step['low_s']:.0f} to {step['high_s']:.0f})",
                    "kW": f"{found['power']['watts_at_wall'] / 1000:.2f}",
                }
            )
    return table(rows)


def points() -> Iterator[str]:
    """Where the guide's own arithmetic does not carry its sentence."""
    nodes = plan(f"{FULL_32B.format('RTX PRO 6000', 8)} --convention listed")
    each = nodes["trainer"]["state_bytes_per_gpu"] / 1e9
    yield (
        "**32B full-parameter fits one server of eight cards.** 16 bytes a parameter, the guide's "
        f"own count, is {nodes['trainer']['state_bytes'] / 1e9:.1f} GB, and {each:.1f} GB on each "
        "of eight cards of 96 GB: the sentence that sends it to several servers does not follow. "
        f"The plans are in the next table ({command(FULL_32B.format('RTX PRO 6000', 8))}). Four "
        "cards of 96 GB do not hold it."
    )
    seventy = {
        c: plan(f"{PLANS['plans']['70b-h200']} {PLANS['step']} --convention {c}")
        for c in ("listed", "visible")
    }
    traffic = seventy["listed"]["traffic"]
    yield (
        f"**{traffic['gradient_allreduce_bytes'] / 1e9:.2f} GB of adapter gradients is what is "
        "reduced, not what a link carries.** A ring moves 2 (n - 1) / n of it: "
        f"{traffic['gradient_wire_bytes_per_gpu'] / 1e9:.2f} GB a card with four that train."
    )
    times = (
        seventy["visible"]["traffic"]["fsdp_bytes_per_gpu_per_step"]
        / (traffic["fsdp_bytes_per_gpu_per_step"])
    )
    yield (
        f"**{traffic['fsdp_bytes_per_gpu_per_step'] / 1e9:.0f} GB of weights a card is for one "
        "micro-batch.** FSDP gathers the layers anew for each: this step in micro-batches of "
        f"{seventy['visible']['trainer']['micro_batch_tokens']:,} tokens gathers {times:.0f} "
        "times as much."
    )
    nominal, reached = (found["sync"]["seconds"] for found in seventy.values())
    yield (
        f"**{nominal:.1f} s for 70B's weights is a nominal rate**, that of PCIe Gen5 x16. With "
        f"the share that is reached, and a sync's overhead, the plan says {reached:.1f} s. In "
        "`listed`, links run at their nominal rate as in the guide."
    )
    half = plan(f"{PLANS['plans']['8b-colocated-half']} {PLANS['step']} --convention listed")
    yield (
        f"**{half['rollout']['resident_rollouts']} rollouts at 0.5 is rounded down from "
        f"{half['rollout']['kv_cache_bytes'] / (131072 * 4608):.2f}, and counts each at its full "
        "length.** A rollout grows as it decodes, so more of them are decoded at once than would "
        f"fit at full length: {half['rollout']['concurrent_rollouts']} of an engine's 64 here."
    )
    yield (
        "**Power is every card and processor at its rated limit, times 1.15.** Decoding rarely "
        "draws that much, so these are upper bounds."
    )


def quoted() -> int:
    return sum(number["kind"] == "quoted" for number in NUMBERS["numbers"])


def page() -> str:
    names = "\n".join(
        f"- `{name}`: {command(options + ' ' + PLANS['step'])}"
        for name, options in PLANS["plans"].items()
    )
    reasons = "\n".join(f"{place}. {text}" for place, text in enumerate(points(), 1))
    return f"""# The hardware guide, recomputed

Made by `python benchmarks/hardware_guide.py > docs/hardware-guide.md`; a test holds the page to it.

A hardware guide for GRPO walks through three configurations: 8B on two cards, 32B on four, 70B on
eight, each with 16 prompts x 8 completions of 512 + 4,096 tokens and LoRA of rank 16. It counts
memory as on the box, 1 GB = 1e9 bytes, with nothing besides weights, states and cache. That is
`roost plan --convention listed`. `--convention visible`, the default, counts what a process sees of
the card, and what the engine, CUDA, NCCL and the allocator take of it.

## Its figures

Every figure that the guide derives, each held by a test (`tests/planner/test_guide.py`). Of the
other figures, {quoted()} are quoted from elsewhere (defaults of TRL and vLLM, vendors' claims), and
one is 4 hours over 1,000 steps, 14.4 s, both quoted from a vendor: no plan's figure.

{figures()}

Rollouts that the cache of one engine holds at full length:

{rollouts()}

The plans, with `--convention listed` or `visible`:

{names}

## Where its sentences do not follow

{reasons}

Full-parameter training of 32B, `roost plan {FULL_32B.format("CARD", "N")} --convention ...`:

{full_32b()}

## Where visible memory differs from listed

A card's box says GB and its memory is closer to GiB, so most large cards show more than the listed
figure x 1e9, and a few less; `visible` is what startup logs print. From that the engine's own needs
go off before there is a cache: activations of its profile run, CUDA graphs, NCCL. On the
guide's cards they take less than the figure on the box leaves out, so a few more rollouts fit than
it says.
Cards whose visible memory no log was found for are left out here, and planned at 0.98 of the listed
figure.

{cards()}

## Its configurations as recipes

`roost plan RECIPE --convention ...`. The seconds are estimates (see [plan.md](plan.md)); those of
`listed` take links at their nominal rate.

{recipes()}
"""


if __name__ == "__main__":
    print(page(), end="")
