"""Kills runs at random moments, resumes them, and compares each with a run that was never killed.

``python tests/support/kill_loop.py [lora|full] [--runs N] [--kills N] [--seed N]``
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
from pathlib import Path

from support.killed_runs import assert_same_run, launch

LONGEST_S = 0.9
"""About what the run takes here, from its start to its end."""


def killed_at_random(folder: Path, method: str, moments: random.Random, kills: int) -> int:
    """Finish a run that is killed up to so many times; returns how often it was."""
    for killed in range(kills):
        if launch(folder, method, "seconds", moments.uniform(0, LONGEST_S)) != -signal.SIGKILL:
            return killed
    assert launch(folder, method) == 0
    return kills


def main() -> None:
    """The loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", nargs="?", default="lora", choices=["lora", "full"])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=6, help="most kills of a run")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        whole = Path(base) / "whole"
        assert launch(whole, args.method) == 0
        for number in range(args.runs):
            folder = Path(base) / f"run-{number}"
            moments = random.Random(f"{args.seed} {number}")
            kills = killed_at_random(folder, args.method, moments, args.kills)
            assert_same_run(whole, folder)
            print(f"run {number}: killed {kills} times, equal", flush=True)


if __name__ == "__main__":
    main()
