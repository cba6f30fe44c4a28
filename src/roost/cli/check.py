"""``roost check``: whether a run does on this machine what the laws of training ask of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from roost.cli.output import Printer
from roost.cli.overrides import add_overrides

EXIT_FAILED = 1
"""A check failed."""


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "check",
        help="the self tests of a run: engine and trainer agree, nothing moves that should not, "
        "a spoilt sync is refused",
        description="Load a recipe's model and engine, or a run's newest weights, and try on a few "
        "short samples: engine and trainer agree; equal rewards and a learning rate of 0 move no "
        "weight; a sync with each fault made on purpose is refused. Prints a verdict a line, "
        "writes nothing, and exits with 1 where one failed.",
    )
    parser.add_argument(
        "target", metavar="RUN_OR_RECIPE", type=Path, help="a run folder, or a TOML file"
    )
    add_overrides(parser)
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")


def run(args: argparse.Namespace) -> int:
    """Check and print."""
    # Here, not above: `roost --help` must not wait for torch.
    from roost.gpu_check.results import Verdict
    from roost.run.display import Display, TerminalDisplay, WarningDisplay
    from roost.self_check.checks import run_checks
    from roost.self_check.subject import subject_of

    display: Display = WarningDisplay() if args.json else TerminalDisplay()
    outcomes = []
    for outcome in run_checks(subject_of(args.target, args.overrides), display):
        outcomes.append(outcome)
        if not args.json:
            Printer().say(outcome.line())
    if args.json:
        print(json.dumps([outcome.as_dict() for outcome in outcomes]))
    failed = any(outcome.verdict is Verdict.FAILED for outcome in outcomes)
    return EXIT_FAILED if failed else 0
