"""``roost doctor``: what this machine has, and what is wrong with it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from roost.doctor.findings import Finding, Level, Report

EXIT_FAULTS = 1
"""Something that runs need is broken."""
_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAULT: "bold red"}


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="what this machine has, and what is wrong with it",
        description="Examine this machine: cards, driver and library versions, copies between "
        "cards, NCCL, CPUs, memory, disks, optional parts. Exits with 1 where there is a fault. "
        "docs/doctor.md explains each check.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Examine and print."""
    # Here, not above: other commands need none of the checks.
    from roost.doctor.checks import examine
    from roost.doctor.collect import collect

    console = Console(highlight=False)
    if args.json:
        report = examine(collect(Path.cwd()))
        print(json.dumps(report.as_dict()))
    else:
        with Console(stderr=True).status("examining this machine; it may take a minute or two"):
            report = examine(collect(Path.cwd()))
        show(report, console)
    return 0 if report.healthy else EXIT_FAULTS


def show(report: Report, console: Console) -> None:
    """Print the findings, and of those that need something done, what and why."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in report.findings:
        style = _STYLES[finding.level]
        table.add_row(f"[{style}]{finding.level}[/{style}]", finding.check, _text(finding))
    console.print(table)
    faults, warnings = report.count(Level.FAULT), report.count(Level.WARNING)
    if not faults and not warnings:
        console.print("[green]all well[/green]")
        return
    style = _STYLES[Level.FAULT if faults else Level.WARNING]
    console.print(f"[{style}]{_count(faults, 'fault')}, {_count(warnings, 'warning')}[/{style}]")


def _text(finding: Finding) -> str:
    lines = [escape(finding.what)]
    if finding.means:
        lines.append(f"[dim]{escape(finding.means)}[/dim]")
    if finding.do:
        lines.append(f"-> {escape(finding.do)}")
    return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
