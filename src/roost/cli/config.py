"""``roost config``: every field of a recipe, its default and its meaning."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from roost.cli.output import Printer
from roost.config.description import FieldInfo, describe_fields
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
    printer = Printer()
    section: str | None = None
    for field in fields:
        head, _, name = field.name.rpartition(".")
        if head != section:
            printer.say(*_heading(head, first=section is None))
            section = head
        printer.say("  ", (name, "cyan"), f" = {field.default}  ", (field.type, "dim"))
        for line in wrap(field.doc, max(40, printer.width) - 6):
            printer.say(f"      {line}")
    return 0


def _heading(section: str, *, first: bool) -> tuple[str | tuple[str, str], ...]:
    """As it stands in a recipe: ``[rollout]``, or ``[[rewards.functions]]`` of a list's items."""
    if not section:
        return (("top level", "bold"),)
    name = f"[[{section.removesuffix('[]')}]]" if section.endswith("[]") else f"[{section}]"
    return ("" if first else "\n", (name, "bold"))


def select(fields: list[FieldInfo], name: str | None) -> list[FieldInfo]:
    """The fields of a section, one field, or all.

    Raises:
        ConfigError: there is no such section or field.
    """
    if name is None:
        return fields
    chosen = [f for f in fields if f"{f.dotted}.".startswith(f"{name}.")]
    if not chosen:
        names = {f.dotted for f in fields} | {f.name.partition(".")[0] for f in fields}
        raise ConfigError(f"no section or field {name!r}.{did_you_mean(name, names)}")
    return chosen
