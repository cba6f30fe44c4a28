"""``roost plan``: does it fit, in which layout, how long is a step, what does it cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roost.cli.overrides import add_overrides
from roost.cli.plan_flags import add_options
from roost.cli.plan_request import Asked, ask, chosen_values, flag, flags_given
from roost.errors import ConfigError
from roost.planner.layouts import choose
from roost.planner.notes import notes
from roost.planner.plan import Plan
from roost.planner.search import Order, ranked, search, smallest
from roost.planner.suggestions import suggestions

if TYPE_CHECKING:
    from roost.config import RunConfig

EXIT_TOO_BIG = 1
"""The plan does not fit."""
ORDERS: tuple[Order, ...] = ("time", "headroom", "cost")


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "plan",
        help="what fits, how long a step takes and what it costs, before a card is rented",
        description="Plan a GRPO run on cards that need not be here. What is left out is chosen "
        "and shown as chosen; --gpus left out is the fewest cards that fit. Exits with 1 where "
        "the plan does not fit.",
    )
    parser.add_argument(
        "recipe",
        nargs="?",
        type=Path,
        help="a TOML file: what `roost train` would run on this machine, or on the cards of its "
        "[plan] section or of --gpu",
    )
    add_overrides(parser)
    add_options(parser)
    _add_views(parser.add_argument_group("what is shown"))


def _add_views(group: Any) -> None:
    group.add_argument("--json", action="store_true", help="print the plan as JSON")
    group.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page with each card's memory by phase"
    )
    view = group.add_mutually_exclusive_group()
    view.add_argument(
        "--explain",
        metavar="PATH",
        action="append",
        help="formula, inputs and source of a figure, such as rollout.resident_rollouts",
    )
    view.add_argument(
        "--search",
        nargs="?",
        const="time",
        choices=ORDERS,
        metavar="ORDER",
        help="all layouts that fit, ranked by time, headroom or cost",
    )
    view.add_argument("--compare", metavar="CARD,CARD", help="several cards side by side")
    view.add_argument(
        "--sweep",
        choices=("completion-length", "generations"),
        metavar="WHAT",
        help="how far completion-length or generations can go, with a plot of the cliff",
    )


def run(args: argparse.Namespace) -> int:
    """Print a plan; 1 where it does not fit."""
    if args.html is not None and (args.explain or args.search or args.sweep):
        raise ConfigError("--html: draws a plan or a --compare; leave --search and the like out.")
    if args.recipe is None and args.overrides:
        raise ConfigError("--set: changes a recipe, and none is given. Use the options of `plan`.")
    values: dict[str, Any] = {}
    if args.recipe is not None:
        # Here, not above: a plan from options alone needs no schema of recipes.
        from roost.cli.plan_recipe import recipe_values
        from roost.config.loading import load_config

        config = load_config(args.recipe, args.overrides)
        if (config.plan.gpu or args.gpu or args.compare) is None:
            return _this_machine(args, config)
        values = recipe_values(config)
    if args.compare is not None:
        return _compare(args, values)
    asked = ask(args, values)
    if args.search is not None:
        return _search(args, asked)
    if args.sweep is not None:
        return _sweep(args, asked)
    return _one(args, take(asked))


def _this_machine(args: argparse.Namespace, config: RunConfig) -> int:
    """What `roost train` would run here."""
    from roost.cli.plan_recipe import RunPlan

    flags = flags_given(args)
    views = {name: getattr(args, name) for name in ("search", "sweep", "html")}
    named = [flag(name) for name in (*flags, *(n for n, v in views.items() if v is not None))]
    if named:
        raise ConfigError(
            f"{named[0]}: plans for cards, and the recipe names none. Add --gpu NAME, or leave it "
            "out for what `roost train` would run on this machine (fields: --set)."
        )
    plan = RunPlan(config, args.recipe.parent)
    return 0 if plan.show(as_json=args.json, explain=args.explain) else EXIT_TOO_BIG


def take(asked: Asked) -> Plan:
    """The plan of a request, on as few cards as it takes where their number is left out."""
    if not asked.auto:
        return choose(asked.request)
    return smallest(asked.request, nodes=asked.nodes)


def plan_json(plan: Plan) -> dict[str, Any]:
    """All that a plan says."""
    return {
        **plan.as_dict(),
        "chosen": chosen_values(plan),
        "notes": notes(plan),
        "suggestions": [asdict(change) for change in suggestions(plan)],
    }


def _one(args: argparse.Namespace, plan: Plan) -> int:
    from roost.cli.plan_table import print_plan

    _write_page(args.html, [plan])
    if args.explain:
        _explain(plan, args.explain, as_json=args.json)
    elif args.json:
        print(json.dumps(plan_json(plan)))
    else:
        print_plan(plan, suggestions(plan))
    return 0 if plan.fits else EXIT_TOO_BIG


def _explain(plan: Plan, names: Sequence[str], *, as_json: bool) -> None:
    figures = [plan.explain(name) for name in names]
    if as_json:
        print(json.dumps([asdict(figure) for figure in figures]))
        return
    for figure in figures:
        print("\n".join(figure.lines()))


def _search(args: argparse.Namespace, asked: Asked) -> int:
    from roost.cli.plan_lists import print_search

    request = asked.request
    if asked.auto:
        request = replace(request, hardware=take(asked).request.hardware)
    plans = ranked(search(request), args.search)
    if args.json:
        print(json.dumps({"order": args.search, "plans": [plan.as_dict() for plan in plans]}))
    elif plans:
        print_search(plans, args.search)
    if plans:
        return 0
    # What stands in the way is said by the nearest plan, as without --search.
    return EXIT_TOO_BIG if args.json else _one(args, choose(request))


def _compare(args: argparse.Namespace, recipe: Mapping[str, Any]) -> int:
    from roost.cli.plan_lists import print_compare

    names = [name.strip() for name in args.compare.split(",") if name.strip()]
    if len(names) < 2:
        raise ConfigError(f"--compare {args.compare!r}: name at least two cards, as in A100,H100.")
    if args.gpu is not None:
        raise ConfigError("--gpu: leave it out where --compare names the cards.")
    rest = {name: value for name, value in recipe.items() if name != "gpu"}
    plans = [take(ask(args, rest, card=name)) for name in names]
    _write_page(args.html, plans)
    if args.json:
        print(json.dumps({"plans": [plan.as_dict() for plan in plans]}))
    else:
        print_compare(plans)
    return 0 if any(plan.fits for plan in plans) else EXIT_TOO_BIG


def _sweep(args: argparse.Namespace, asked: Asked) -> int:
    from roost.cli.plan_lists import print_sweep
    from roost.planner.sweeps import sweep

    request = asked.request
    if asked.auto:
        request = replace(request, hardware=take(asked).request.hardware)
    swept = sweep(request, args.sweep)
    if args.json:
        print(json.dumps(swept.as_dict()))
    else:
        print_sweep(swept)
    return 0 if any(plan.fits for plan in swept.plans) else EXIT_TOO_BIG


def _write_page(path: Path | None, plans: Sequence[Plan]) -> None:
    if path is None:
        return
    from roost.planner.page import page

    try:
        path.write_text(page(plans), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {str(path)!r}: cannot be written: {error.strerror}.") from error
