"""Entry point: parses the command and turns errors into one message and an exit code."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NoReturn

from roost import __version__
from roost.errors import RoostError, did_you_mean, nearest

COMMANDS = ("train", "plan", "pilot", "check", "eval", "show", "config", "bench", "doctor", "serve")

EXIT_ERROR = 2
"""Something is wrong with what was asked."""
EXIT_INTERRUPTED = 130
"""Stopped by a signal, as shells count it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Name the nearest command where one is misspelt."""
        if message.startswith("argument COMMAND: invalid choice"):
            wrong = message.split("'")[1]
            message = f"unknown command {wrong!r}.{did_you_mean(wrong, COMMANDS)}"
        elif message.startswith("argument -"):
            message = _explain_value(message.removeprefix("argument "))
        self.exit(EXIT_ERROR, f"error: {message}\nSee `{self.prog} --help`.\n")

    def refuse(self, wrong: str) -> NoReturn:
        """Say what was meant by an argument that the command does not take."""
        self.error(_explain_unknown(wrong, list(self._option_string_actions)))


def _explain_value(problem: str) -> str:
    """What is wrong with the value of an option: its name, the value, what is allowed."""
    option, _, problem = problem.partition(": ")
    option = option.split("/")[0].split(",")[0]
    if problem.startswith("invalid choice: "):
        wrong, _, rest = problem.removeprefix("invalid choice: ").partition(" (choose from ")
        wrong = wrong.strip("'")
        allowed = [one.strip(" '") for one in rest[:-1].split(",")]
        near = did_you_mean(wrong, allowed)
        hint = near if "Did you mean" in near else ""
        return f"{option} {wrong!r}: allowed are {', '.join(allowed)}.{hint}"
    for kind, what in (("int", "a whole number"), ("float", "a number")):
        if problem.startswith(f"invalid {kind} value: "):
            return f"{option} {problem.partition(': ')[2]}: should be {what}."
    return f"{option}: {problem}"


def _explain_unknown(wrong: str, options: Sequence[str]) -> str:
    """What was meant by an argument that the command does not take: often a field of the
    recipe."""
    # Here, not above: commands that need no recipe do not wait for its schema.
    from roost.config.description import settable_names

    name = wrong.lstrip("-").partition("=")[0].replace("-", "_")
    fields = settable_names()
    homes = [field for field in fields if name in (field, field.rpartition(".")[2])]
    sections = {field.partition(".")[0] for field in fields if "." in field}
    if wrong.startswith("--") and (homes or name in sections):
        sets = " or ".join(f"--set {home}=VALUE" for home in homes or [name])
        return f"no option {wrong}. Fields of the recipe are set with {sets}."
    if not wrong.startswith("-"):
        return f"one argument too many: {wrong}."
    # Without their dashes, which make short options look alike.
    near = nearest(wrong.partition("=")[0].lstrip("-"), [one.lstrip("-") for one in options])
    return f"no option {wrong}.{f' Did you mean --{near}?' if near else ''}"


def build_parser(commands: Sequence[str]) -> tuple[argparse.ArgumentParser, Mapping[str, _Parser]]:
    """The parser, and that of each command."""
    parser = _Parser(prog="roost", description="GRPO for language models on the GPUs people have.")
    parser.add_argument("--version", action="version", version=f"roost {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in commands:
        import_module(f"roost.cli.{name}").add_parser(subparsers)
    return parser, subparsers.choices


def _prepare_streams() -> None:
    """Have standard streams that take any text: prompts and models say what they like.

    Where a caller has closed them, files that are opened later would take their numbers, and what
    is printed would go there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    _prepare_streams()
    # A command that is named first needs no other, nor what the others import.
    parser, parsers = build_parser(argv[:1] if argv[:1] and argv[0] in COMMANDS else COMMANDS)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parsers[args.command].refuse(unknown[0])
    try:
        code: int = import_module(f"roost.cli.{args.command}").run(args)
        sys.stdout.flush()  # here, not at exit, where a closed pipe would be a traceback
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
