"""``roost train``: train a model, or go on with a run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roost.cli.overrides import add_overrides
from roost.config import RunConfig
from roost.config.loading import load_config, quickstart_path
from roost.errors import ConfigError

if TYPE_CHECKING:
    from roost.run.prepare import Prepared


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "train",
        help="train a model with GRPO, or resume a run",
        description="Train a model. Without a recipe, the quickstart: a tiny model that ships "
        "with Roost learns arithmetic.",
    )
    parser.add_argument("recipe", nargs="?", type=Path, help="a TOML file; see `roost config`")
    add_overrides(parser)
    parser.add_argument("--output", metavar="DIR", help="the run folder (output.folder)")
    parser.add_argument("--resume", metavar="DIR", type=Path, help="go on with a run folder")
    parser.add_argument("--from-step", metavar="N", type=int, help="resume from this checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="check everything, load no weights")
    parser.add_argument("--force", action="store_true", help="start a run that the plan refuses")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Train; 0 when the run finished or was stopped cleanly."""
    # Here, not above: `roost --help` and `roost config` must not wait for torch.
    from roost.run import launch
    from roost.run.display import Display, QuietDisplay, TerminalDisplay, WarningDisplay
    from roost.run.folder import existing_run
    from roost.training.launched import is_leader

    display: Display = QuietDisplay()
    if is_leader():
        display = WarningDisplay() if args.json else TerminalDisplay()
    _check_options(args)
    objects = launch.PythonObjects()
    if args.resume is not None:
        asked = {"overrides": args.overrides, "recipe": args.recipe, "from_step": args.from_step}
        if args.dry_run:
            target = existing_run(args.resume, "--resume")
            prepared, _ = launch.check_resume(target, display, objects=objects, **asked)
            return _dry_run(prepared, as_json=args.json)
        result = launch.resume_run(args.resume, display, objects=objects, **asked)
    else:
        config, base_dir = _config(args)
        if args.recipe is None:
            display.say("no recipe given: running the quickstart (a tiny model learns arithmetic)")
        if args.dry_run:
            return _dry_run(launch.check_run(config, base_dir, display), as_json=args.json)
        result = launch.start_run(config, base_dir, display, objects=objects, force=args.force)
    if not is_leader():
        return 0
    if args.json:
        print(json.dumps(result.as_dict()))
    else:
        print("\n".join(result.lines()))
    return 0


def _config(args: argparse.Namespace) -> tuple[RunConfig, Path]:
    overrides = list(args.overrides)
    if args.output is not None:
        overrides.append(f"output.folder={json.dumps(args.output)}")
    config = load_config(args.recipe or quickstart_path(), overrides)
    return config, args.recipe.parent if args.recipe is not None else Path.cwd()


def _check_options(args: argparse.Namespace) -> None:
    if args.resume is not None and args.output is not None:
        raise ConfigError("--output and --resume exclude each other: a run keeps its folder.")
    if args.from_step is not None and args.resume is None:
        raise ConfigError(
            f"--from-step {args.from_step}: names a checkpoint of a run; give --resume DIR as well."
        )


def _dry_run(prepared: Prepared, *, as_json: bool) -> int:
    from roost.training.launched import is_leader

    if not is_leader():
        return 0
    if as_json:
        print(
            json.dumps(
                {
                    "config": prepared.config.model_dump(),
                    "prompts": len(prepared.prompts.train),
                    "held_out": len(prepared.prompts.held_out),
                    "data": asdict(prepared.prompts.report),
                    "plan": prepared.plan.as_dict(),
                }
            )
        )
    else:
        print("dry run: everything is in order, nothing was loaded or written")
    return 0
