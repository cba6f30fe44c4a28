"""``roost show``: the state of a run, its curves, its samples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roost.cli.curves import bars_for, curve
from roost.cli.output import Printer
from roost.errors import ConfigError, did_you_mean

CURVES = ("reward", "completions/mean_length", "entropy", "sampling/logp_difference_mean")


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "show",
        help="the state of a run, its curves, its samples",
        description="Show a run folder, while it runs or after.",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--samples", type=int, default=3, help="how many of the last step's")
    parser.add_argument("--metric", action="append", help="curves to draw; see metrics.jsonl")
    parser.add_argument("--json", action="store_true", help="print the state as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the state of a run."""
    from roost.run import samples_file

    if args.samples < 0:
        raise ConfigError(f"--samples {args.samples}: should be 0 or more.")
    state = run_state(args.run)
    metrics = _known(args.metric, state["metrics"]) or CURVES
    if args.json:
        print(json.dumps(state))
        return 0
    _print_state(Printer(), args.run, state, metrics)
    files = sorted((args.run / "samples").glob("step-*.parquet"))
    if files and args.samples:
        _print_samples(Printer(), samples_file.read(files[-1])[: args.samples])
    return 0


def _print_state(
    printer: Printer, root: Path, state: dict[str, Any], metrics: Sequence[str]
) -> None:
    from roost.run.display import figure

    printer.say(
        (str(root), "bold"),
        f": {state['status']}, step {state['step']} of {state['steps']}, "
        f"policy version {state['policy_version']}",
    )
    printer.say(f"checkpoints after steps {', '.join(map(str, state['checkpoints'])) or 'none'}")
    for step, result in state["held_out"].items():
        printer.say(
            f"held out after step {step}: reward {figure(result['reward'])}, "
            f"pass@1 {result['pass_at_1']:.3f}"
        )
    for name in metrics:
        values = [row[name] for row in state["metrics"] if row.get(name) is not None]
        if values:
            printer.say("\n", (name, "cyan"), f"  {values[0]:.4g} -> {values[-1]:.4g}")
            printer.say(curve(values, bars=bars_for(printer.encoding)))


def _print_samples(printer: Printer, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        reward = "unscored" if row["reward"] is None else f"reward {row['reward']:.3f}"
        step = (f"\nstep {row['step']}", "bold")
        printer.say(step, f", {reward}, {row['finish_reason']}")
        printer.say((row["prompt"], "dim"))
        printer.say(row["completion"])


def _known(names: list[str] | None, rows: list[dict[str, Any]]) -> list[str]:
    """The metrics asked for.

    Raises:
        ConfigError: the run records none of that name.
    """
    known = {name for row in rows for name in row}
    for name in names or []:
        if known and name not in known:
            raise ConfigError(
                f"--metric {name!r}: the run records no such metric."
                f"{did_you_mean(name, known) or ' metrics.jsonl has their names.'}"
            )
    return names or []


def run_state(root: Path) -> dict[str, Any]:
    """All that a run folder says about its run.

    Raises:
        CheckpointError: it is not a run folder.
    """
    from roost.config.loading import load_config
    from roost.run import checkpoint
    from roost.run.folder import existing_run
    from roost.run.lock import is_live
    from roost.run.metrics import read_metrics

    folder = existing_run(root, "RUN =")
    config = load_config(folder.config)
    report = json.loads(folder.report.read_text()) if folder.report.exists() else {}
    rows = read_metrics(folder.metrics)
    step = rows[-1]["step"] if rows else 0
    if is_live(root):
        status = "running"
    elif report.get("finished") and report["steps"] == config.train.steps:
        status = "finished"
    else:
        status = f"stopped; go on with: roost train --resume {root}"
    return {
        "status": status,
        "step": step,
        "steps": config.train.steps,
        "policy_version": rows[-1]["policy_version"] if rows else 0,
        "checkpoints": checkpoint.steps(folder.checkpoints),
        # A killed run has no report, or that of an earlier stop.
        "held_out": report.get("held_out", {})
        | checkpoint.newest_state(folder.checkpoints).get("evaluations", {}),
        "metrics": rows,
    }
