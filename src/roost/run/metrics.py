"""metrics.jsonl and the trackers that may receive the same numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from roost.errors import CheckpointError, ConfigError

Metrics = Mapping[str, float]


class MetricsLog:
    """Appends one JSON object a step; a line that a kill cut short is dropped on resume.

    Args:
        path: The file.
        resume_step: Rows after this step are dropped; None leaves the file as it is.
    """

    def __init__(self, path: Path, resume_step: int | None = 0) -> None:
        self._path = path
        if resume_step is not None and path.exists():
            kept = [row for row in read_metrics(path) if row["step"] <= resume_step]
            # Beside and then into place: a kill in between must not cost the rows before it.
            beside = path.with_name(f".{path.name}.part")
            beside.write_text("".join(json.dumps(row) + "\n" for row in kept))
            beside.replace(path)

    def append(self, row: Metrics) -> None:
        """Write a row. NaN and infinity become null: JSON has neither.

        Raises:
            CheckpointError: the disk is full or not writable.
        """
        clean = {k: v if math.isfinite(v) else None for k, v in row.items()}
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(clean) + "\n")
        except OSError as error:
            raise CheckpointError(
                f"'{self._path}' cannot be written: {error.strerror or error}. Checkpoints are "
                "untouched; make room and go on with --resume."
            ) from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a metrics file; a half-written last line is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().split("\n"):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class Tracker(Protocol):
    """An experiment tracker."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Record one step."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


class _Tensorboard:
    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", json.dumps(config, indent=2))

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WandbLike:
    """wandb, and trackio, which offers the same calls."""

    def __init__(self, module: Any, folder: Path, config: dict[str, Any]) -> None:
        self._module = module
        module.init(project="roost", name=folder.name, config=config)

    def log(self, step: int, metrics: Metrics) -> None:
        self._module.log(dict(metrics), step=step)

    def close(self) -> None:
        self._module.finish()


def check_trackers(names: Sequence[str]) -> None:
    """Say at the start which tracker is not installed.

    Raises:
        ConfigError: with the line that installs it.
    """
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"output.trackers names '{name}', which is not installed. Install it with "
                f"`pip install {name}`, or leave it out."
            )


def open_trackers(names: Sequence[str], folder: Path, config: dict[str, Any]) -> list[Tracker]:
    """Start the trackers of a run."""
    trackers: list[Tracker] = []
    for name in names:
        if name == "tensorboard":
            trackers.append(_Tensorboard(folder, config))
        else:
            from importlib import import_module

            trackers.append(_WandbLike(import_module(name), folder, config))
    return trackers
