"""Plans of six runs beside what the runs took: peak memory by phase, and seconds of a step.

Each run is piloted first, in a process of its own; then it is planned and trained for a few steps,
with nothing learnt from one to the next, in another. The machine should have nothing else to do.

    python benchmarks/plan_runs.py [--json] [--only NAME] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SMOLLM2 = ROOT / "recipes" / "smollm2-arithmetic.toml"
TINY = ROOT / "src" / "roost" / "assets" / "quickstart.toml"
MEMORY_TARGET, TIME_TARGET = 0.05, 0.15
RUNS: dict[str, tuple[Path, list[str]]] = {
    "lora": (SMOLLM2, []),
    "full": (SMOLLM2, ["train.method=full", "train.learning_rate=1e-6"]),
    "lora-long": (
        SMOLLM2,
        ["rollout.max_completion_tokens=192", "data.prompts_per_step=4", "rollout.generations=4"],
    ),
    "full-small": (
        SMOLLM2,
        ["train.method=full", "data.prompts_per_step=4", "rollout.generations=2"],
    ),
    "lora-large-groups": (SMOLLM2, ["data.prompts_per_step=2", "rollout.generations=24"]),
    "tiny": (TINY, ["train.learning_rate=1e-6"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(RUNS), action="append")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only or RUNS:
            rows.append(measured(name, Path(folder), args.steps))
            progress = " ".join(f"{key} {value}" for key, value in rows[-1].items())
            print(f"{time.perf_counter() - start:5.0f} s  {progress}", file=sys.stderr)
    print(json.dumps(rows) if args.json else "\n".join(table(rows)))


def measured(name: str, folder: Path, steps: int) -> dict[str, Any]:
    """Plan one of the runs, pilot it, plan it again, and train it."""
    recipe, settings = RUNS[name]
    run, home = folder / name, folder / f"{name}-home"
    sets = [part for text in settings for part in ("--set", text)]
    training = (f"train.steps={steps}", "train.warmup_steps=0", "eval.prompts=0")
    # Evaluation is left out, so that all seconds are of steps; the recipe's lengths stay the same.
    short = [*sets, *(part for text in training for part in ("--set", text))]
    before = planned(recipe, short, home)
    roost("pilot", recipe, *sets, "--steps", steps, "--json", home=home)
    after = planned(recipe, short, home)
    roost("train", recipe, *short, "--output", run, "--json", home=home)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    row: dict[str, Any] = {"run": name}
    for first, second in zip(before["phases"], after["phases"], strict=True):
        peak = max(step[f"memory/{first['name']}_peak_bytes"] for step in metrics)
        row[f"{first['name']}_bytes"] = [first["bytes"], second["bytes"], peak]
    # The first step compiles kernels and allocates moments, as the pilot's warm-up did.
    later = metrics[1:] or metrics
    seconds = fmean(step["time/generate_s"] + step["time/train_s"] for step in later)
    return {**row, "step_s": [None, after["step"]["total_s"], seconds]}


def planned(recipe: Path, sets: Sequence[str], home: Path) -> dict[str, Any]:
    """What ``roost train`` would plan."""
    plan: dict[str, Any] = json.loads(
        roost("train", recipe, *sets, "--dry-run", "--json", home=home)
    )["plan"]
    return plan


def roost(command: str, *arguments: object, home: Path) -> str:
    """Run a command in a process of its own; returns its output."""
    environment = {
        **os.environ,
        "ROOST_HOME": str(home),
        "PYTHONPATH": str(ROOT / "src"),
    }
    words = [sys.executable, "-m", "roost", command, *map(str, arguments)]
    ended = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SystemExit(f"roost {command} failed:\n{ended.stderr}")
    return ended.stdout


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A table for the docs, errors beyond the target in bold."""
    lines = [
        "| run | generate, GiB | before, after | train, GiB | before, after | step, s | after |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            *cells_of(row["generate_bytes"], MEMORY_TARGET, 2**30),
            *cells_of(row["train_bytes"], MEMORY_TARGET, 2**30),
            *cells_of(row["step_s"], TIME_TARGET, 1),
        ]
        lines.append(f"| {row['run']} | {' | '.join(cells)} |")
    return lines


def cells_of(figures: Sequence[float | None], target: float, unit: float) -> list[str]:
    """Measured, and the errors of the plans before and after the pilot."""
    *plans, took = figures
    assert took is not None
    errors = [one / took - 1 for one in plans if one is not None]
    words = [f"{100 * error:+.1f} %" for error in errors]
    marked = [w if abs(e) <= target else f"**{w}**" for w, e in zip(words, errors, strict=True)]
    return [f"{took / unit:.3g}", ", ".join(marked)]


if __name__ == "__main__":
    main()
