"""Entry point: parses the command and turns errors into one message and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from roost import __version__
from roost.errors import RoostError, did_you_mean

COMMANDS = ("train", "eval", "show", "config")

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
        self.exit(EXIT_ERROR, f"error: {message}\nSee `{self.prog} --help`.\n")


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
