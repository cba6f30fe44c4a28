"""Pages that show what a command prints show what it prints now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_pages_of_the_plan_are_what_its_commands_print() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "refresh-docs", "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
