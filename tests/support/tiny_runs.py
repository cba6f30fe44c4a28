"""Short runs of the model that ships with the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roost.config.loading import build_config, merge
from roost.run.display import QuietDisplay
from roost.run.folder import RunFolder
from roost.run.launch import PythonObjects, start_run
from roost.run.report import RunResult

SECTIONS: dict[str, Any] = {
    "model": {"path": "tiny", "device": "cpu"},
    "data": {"source": "arithmetic", "options": {"size": 60}, "prompts_per_step": 4},
    "rewards": {"functions": ["numeric"], "workers": 1},
    "rollout": {"generations": 4, "max_completion_tokens": 6},
    "train": {"steps": 2, "learning_rate": 1e-3},
    "eval": {"prompts": 6},
}


@dataclass(frozen=True)
class TinyRun:
    """A finished run and what it said."""

    folder: RunFolder
    result: RunResult
    lines: list[str]


def train_tiny(folder: Path, base_dir: Path, sections: Mapping[str, Any] | None = None) -> TinyRun:
    """Train into a folder; ``sections`` go over ``SECTIONS``."""
    mapping = merge(merge(SECTIONS, sections or {}), {"output": {"folder": str(folder)}})
    display = QuietDisplay()
    result = start_run(build_config(mapping), base_dir, display, objects=PythonObjects())
    return TinyRun(RunFolder(folder), result, display.lines)
