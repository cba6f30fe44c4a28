"""``roost pilot``: rehearse the worst case, and measure what the plan depends on."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from roost.cli.overrides import add_overrides
from roost.errors import ConfigError

STEPS = 3
"""Real steps, by default."""


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "pilot",
        help="rehearse a run's worst case here, and measure what its plan depends on",
        description="Decode the longest prompts to the full budget and train on them, so that "
        "memory runs out now or never; then measure this machine. `roost plan RECIPE` and "
        "`roost train` use what is found.",
    )
    parser.add_argument("recipe", type=Path, help="a TOML file; see `roost config`")
    add_overrides(parser)
    parser.add_argument(
        "--steps", metavar="N", type=int, default=STEPS, help=f"steps to take (default {STEPS})"
    )
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure; 0 when the worst case fits."""
    # Here, not above: `roost --help` must not wait for torch.
    from roost.config.loading import load_config
    from roost.run.display import Display, TerminalDisplay, WarningDisplay
    from roost.run.pilot import run_pilot

    if args.steps < 1:
        raise ConfigError(f"--steps {args.steps}: should be at least 1.")
    display: Display = WarningDisplay() if args.json else TerminalDisplay()
    config = load_config(args.recipe, args.overrides)
    result = run_pilot(config, args.recipe.parent, display, steps=args.steps)
    print(json.dumps(result.as_dict()) if args.json else "\n".join(result.lines()))
    return 0
