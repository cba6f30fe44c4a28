"""The run folder: what is in it.

::

    config.toml          the resolved configuration
    environment.json     versions, device, seed, and which model it was
    data.json            how many prompts there are, and how many were left out or cut
    metrics.jsonl        one JSON object a step
    samples/             step-000012.parquet: prompt, completion, rewards, advantage, ...
    checkpoints/step-12/ what resume needs, checked when read
    final/               the trained model or adapter, with its tokenizer
    ledger.json          the plan beside what was measured
    report.json          how the run ended
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from roost.errors import CheckpointError, nearest


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Names every path of a run; creates nothing by itself."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.toml"

    @property
    def environment(self) -> Path:
        """Versions, device, seed, model fingerprint."""
        return self.root / "environment.json"

    @property
    def data(self) -> Path:
        """How many prompts there are, and how many were left out or cut."""
        return self.root / "data.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a step."""
        return self.root / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """A Parquet file a step."""
        return self.root / "samples"

    @property
    def checkpoints(self) -> Path:
        """One folder a checkpoint."""
        return self.root / "checkpoints"

    @property
    def final(self) -> Path:
        """The trained model."""
        return self.root / "final"

    @property
    def ledger(self) -> Path:
        """Plan and measurement by phase."""
        return self.root / "ledger.json"

    @property
    def report(self) -> Path:
        """How the run ended."""
        return self.root / "report.json"

    @property
    def is_run(self) -> bool:
        """Whether the folder holds a run."""
        return self.config.is_file()


def default_folder(model_path: str, now: datetime) -> Path:
    """``runs/<model>-<date>-<time>``, the name that a run gets unless told otherwise.

    Where another run began in the same second, ``-2`` and so on follow.
    """
    name = f"{Path(model_path).name}-{now:%Y%m%d-%H%M%S}"
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(path for path in (Path("runs") / name for name in names) if not path.exists())


def existing_run(root: Path, said: str) -> RunFolder:
    """The folder of a run that is there.

    Args:
        root: Its path.
        said: The option or argument that named it, for the message.

    Raises:
        CheckpointError: it is not one.
    """
    folder = RunFolder(root)
    if folder.is_run:
        return folder
    what = "there is no such folder"
    if root.exists():
        what = "no config.toml in it" if root.is_dir() else "it is a file"
    raise CheckpointError(f"{said} '{root}': not a run folder ({what}).{_meant(root)}")


def _meant(root: Path) -> str:
    """The run of nearly that name, or the newest within, or beside."""
    around = [*root.glob("*/config.toml"), *root.parent.glob("*/config.toml")]
    around += Path("runs").glob("*/config.toml")
    runs = [path.parent for path in sorted(around, key=lambda path: -path.stat().st_mtime)]
    near = nearest(root.name, [run.name for run in runs])
    likely = next((run for run in runs if near in (None, run.name)), None)
    return (
        f" Did you mean '{likely}'?" if likely is not None else " Runs are made by `roost train`."
    )


def base_dir_of(folder: RunFolder) -> Path:
    """Where relative paths of a run's data and reward files start.

    Raises:
        CheckpointError: environment.json, which says it, is gone or damaged.
    """
    try:
        return Path(json.loads(folder.environment.read_text())["base_dir"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"'{folder.environment}' cannot be read ({type(error).__name__}); it says where "
            "the run's data and reward files are. Put it back, or start a new run."
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
