"""Runs `roost plan` in this process."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any

from roost.cli.main import main


def run_plan(*arguments: str) -> tuple[int, str]:
    """Exit code and output."""
    output = io.StringIO()
    with redirect_stdout(output):
        code = main(["plan", *arguments])
    return code, output.getvalue()


def plan_json(*arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON of a plan that ends with an exit code."""
    ended, output = run_plan(*arguments, "--json")
    assert ended == code, output
    plan: dict[str, Any] = json.loads(output)
    return plan
