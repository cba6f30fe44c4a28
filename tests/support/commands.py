"""Runs commands of the command line as a person or a program would."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from roost.cli.main import main


@dataclass(frozen=True, slots=True)
class Said:
    """What a command gave back."""

    code: int | str | None
    output: str
    error: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON value; NaN and infinity are none."""
        return json.loads(self.output, parse_constant=_refuse)

    @property
    def words(self) -> str:
        """Standard output with every stretch of white space as one space."""
        return " ".join(self.output.split())


def run(*arguments: object) -> Said:
    """``run("show", "run")`` runs ``roost show run`` in this process."""
    output, error = io.StringIO(), io.StringIO()
    code: int | str | None
    with redirect_stdout(output), redirect_stderr(error):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # as argparse ends
            code = end.code
    return Said(code, output.getvalue(), error.getvalue())


def succeed(*arguments: object) -> Said:
    """The same; it must succeed."""
    said = run(*arguments)
    assert said.code == 0, said.error
    return said


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
