"""``roost eval``: mean reward, pass@1 and pass@k of a model or a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from roost.cli.overrides import add_overrides
from roost.config.loading import parse_overrides


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "eval",
        help="mean reward, pass@1 and pass@k on held-out prompts",
        description="Evaluate a model folder, an adapter's, a hub id, `tiny`, or a run folder "
        "(its newest checkpoint, on the prompts that the run held out).",
    )
    parser.add_argument("model", metavar="MODEL_OR_RUN")
    parser.add_argument("--data", help="a prompt source (data.source)")
    parser.add_argument("--reward", action="append", help="a reward; may be given more than once")
    parser.add_argument("--prompts", type=int, help="how many prompts (eval.prompts)")
    parser.add_argument("--generations", "-k", type=int, default=1, help="samples a prompt")
    parser.add_argument(
        "--pass-reward", type=float, default=1.0, help="the reward from which a sample passes"
    )
    add_overrides(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print."""
    from roost.run.display import Display, TerminalDisplay, WarningDisplay
    from roost.run.evaluate_model import config_for_model, evaluate_model
    from roost.run.launch import PythonObjects

    sections = parse_overrides(args.overrides)
    if args.data is not None:
        sections.setdefault("data", {})["source"] = args.data
    if args.reward is not None:
        sections.setdefault("rewards", {})["functions"] = args.reward
    if args.prompts is not None:
        sections.setdefault("eval", {})["prompts"] = args.prompts
    display: Display = WarningDisplay() if args.json else TerminalDisplay()
    result = evaluate_model(
        config_for_model(args.model, sections, Path.cwd()),
        display,
        generations=args.generations,
        pass_reward=args.pass_reward,
        objects=PythonObjects(),
    )
    if args.json:
        print(json.dumps(result.as_dict()))
        return 0
    print(f"reward   {result.reward:.3f}")
    print(f"pass@1   {result.pass_at_1:.3f}")
    if result.generations > 1:
        print(f"pass@{result.generations}   {result.pass_at_k:.3f}")
    print(
        f"length   {result.mean_length:.1f} tokens, {result.truncated:.1%} out of budget\n"
        f"on       {result.prompts} prompts x {result.generations}, {result.unscored} unscored"
    )
    return 0
