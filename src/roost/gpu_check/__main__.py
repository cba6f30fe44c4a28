"""``python -m roost.gpu_check``: what ``scripts/gpu-check`` runs."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from roost.errors import RoostError
from roost.gpu_check.registry import CHECKS, choose
from roost.gpu_check.results import Place, Result, Verdict
from roost.gpu_check.runner import run_checks

EXIT_FAILED = 1
"""A check failed."""
EXIT_USAGE = 2
BUDGET_S = 570.0
"""Under ten minutes, the scripts' own start and end included."""
_STYLES = {Verdict.OK: "green", Verdict.FAILED: "bold red", Verdict.SKIPPED: "yellow"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks that were asked for and print one table; 1 where one failed."""
    args = _parser().parse_args(arguments)
    if args.list:
        print("\n".join(f"{check.name:16} {check.title}" for check in CHECKS.values()))
        return 0
    try:
        checks = choose(args.checks, small=args.small)
    except RoostError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    with tempfile.TemporaryDirectory(prefix="roost-gpu-check-") as folder:
        place = Place(args.device, args.small, folder)
        results = []
        for result in run_checks(checks, place, args.budget):
            results.append(result)
            print(_line(result), file=sys.stderr, flush=True)
    print(_json(results, place) if args.json else _table(results), end="")
    return EXIT_FAILED if any(r.verdict is Verdict.FAILED for r in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        description="Check that Roost is right on this machine's GPU, and measure it there. Each "
        "check runs in a process of its own; exits with 1 where one failed.",
    )
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="names; default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--small", action="store_true", help="the smallest models; no measurement")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all checks")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--list", action="store_true", help="name the checks and run none")
    return parser


def _line(result: Result) -> str:
    return f"{result.verdict.value:8} {result.name:16} {result.seconds:6.1f} s  {result.detail}"


def _table(results: Sequence[Result]) -> str:
    table = Table(box=None, pad_edge=False)
    for column in ("check", "verdict", "seconds"):
        table.add_column(column, no_wrap=True, justify="right" if column == "seconds" else "left")
    table.add_column("detail", overflow="fold")
    for result in results:
        style = _STYLES[result.verdict]
        table.add_row(
            result.name,
            f"[{style}]{result.verdict}[/{style}]",
            f"{result.seconds:.1f}",
            escape(result.detail),
        )
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def _json(results: Sequence[Result], place: Place) -> str:
    return (
        json.dumps(
            {
                "device": place.device,
                "small": place.small,
                "ok": not any(r.verdict is Verdict.FAILED for r in results),
                "seconds": sum(r.seconds for r in results),
                "checks": [result.as_dict() for result in results],
            }
        )
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
