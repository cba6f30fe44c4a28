"""``roost config``: every field of a recipe, its default and its meaning."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from roost.config.loading import FieldInfo, describe_fields
from roost.errors import ConfigError, did_you_mean


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "config",
        help="every field of a recipe, its default and its meaning",
        description="List the fields of a recipe: all, or those of a section or one field.",
    )
    parser.add_argument("name", nargs="?", help="a section or a field, such as rollout.top_p")
    parser.add_argument("--json", action="store_true", help="print the fields as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the fields."""
    fields = select(describe_fields(), args.name)
    if args.json:
        print(json.dumps([asdict(field) for field in fields]))
        return 0
    console = Console(highlight=False)
    section = None
    for field in fields:
        head = field.name.rpartition(".")[0]
        if head != section:
            section = head
            console.print(f"\n[bold]\\[{section}][/bold]" if section else "[bold]top level[/bold]")
        name = field.name.rpartition(".")[2]
        console.print(
            f"  [cyan]{name}[/cyan] = {escape(field.default)}  [dim]{escape(field.type)}[/dim]"
        )
        console.print(f"      {escape(field.doc)}")
    return 0


def select(fields: list[FieldInfo], name: str | None) -> list[FieldInfo]:
    """The fields of a section, one field, or all.

    Raises:
        ConfigError: there is no such section or field.
    """
    if name is None:
        return fields
    chosen = [f for f in fields if f.name == name or f.name.startswith(f"{name}.")]
    if not chosen:
        names = {f.name for f in fields} | {f.name.partition(".")[0] for f in fields}
        raise ConfigError(f"no section or field {name!r}.{did_you_mean(name, names)}")
    return chosen
