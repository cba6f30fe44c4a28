"""Entry point: parses the command and turns errors into one message and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from roost import __version__
from roost.config.loading import describe_fields
from roost.errors import RoostError, did_you_mean

COMMANDS = ("train", "eval", "show", "config", "doctor")

EXIT_ERROR = 2
"""Something is wrong with what was asked."""
EXIT_INTERRUPTED = 130
"""Stopped by a signal, as shells count it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Name the nearest command where one is misspelt."""
        if "invalid choice" in message and "'" in message:
            wrong = message.split("'")[1]
            message = f"unknown command {wrong!r}.{did_you_mean(wrong, COMMANDS)}"
        elif message.startswith("unrecognized arguments: "):
            message = _explain_unknown(message.removeprefix("unrecognized arguments: "))
        self.exit(EXIT_ERROR, f"error: {message}\nSee `{self.prog} --help`.\n")


def _explain_unknown(arguments: str) -> str:
    """What was meant by arguments that no command takes: often a field of the recipe."""
    wrong = arguments.split()[0]
    name = wrong.lstrip("-").partition("=")[0].replace("-", "_")
    fields = [field.name for field in describe_fields()]
    homes = [field for field in fields if name in (field, field.rpartition(".")[2])]
    sections = {field.partition(".")[0] for field in fields if "." in field}
    if wrong.startswith("--") and (homes or name in sections):
        sets = " or ".join(f"--set {home}=VALUE" for home in homes or [name])
        return f"no option {wrong}. Fields of the recipe are set with {sets}."
    what = "no option" if wrong.startswith("-") else "one argument too many:"
    return f"{what} {wrong}."


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = _Parser(prog="roost", description="GRPO for language models on the GPUs people have.")
    parser.add_argument("--version", action="version", version=f"roost {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"roost.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    args = build_parser().parse_args(argv)
    try:
        code: int = import_module(f"roost.cli.{args.command}").run(args)
    except RoostError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe (head, less) has left; the rest of the output has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
