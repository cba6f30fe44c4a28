"""Experiment trackers that receive the same numbers as metrics.jsonl."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from roost.errors import ConfigError
from roost.run.metrics import Metrics


class Tracker(Protocol):
    """An experiment tracker."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Record one step."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


class _Tensorboard:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", json.dumps(config, indent=2))

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WandbLike:
    """wandb, and trackio, which offers the same calls. What they print goes to standard error."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any], **options: Any) -> None:
        with redirect_stdout(sys.stderr):
            self._module = import_module(name)
            self._module.init(project="roost", name=folder.name, config=dict(config), **options)

    def log(self, step: int, metrics: Metrics) -> None:
        # The step goes beside the metrics; as one of them, trackio would rename it.
        values = {name: value for name, value in metrics.items() if name != "step"}
        with redirect_stdout(sys.stderr):
            self._module.log(values, step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._module.finish()


_TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "tensorboard": _Tensorboard,
    "trackio": lambda folder, config: _WandbLike("trackio", folder, config),
    # It keeps its files where it is told, and else in the working folder.
    "wandb": lambda folder, config: _WandbLike("wandb", folder, config, dir=str(folder)),
}


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


def open_trackers(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> list[Tracker]:
    """Start the trackers of a run.

    Raises:
        ConfigError: one cannot start: it has no key, or its server is not there.
    """
    opened: list[Tracker] = []
    for name in names:
        try:
            opened.append(_TRACKERS[name](folder, config))
        except Exception as error:
            for tracker in opened:
                tracker.close()
            said = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"output.trackers: '{name}' cannot start: {type(error).__name__}: {said} "
                "Set it up, or leave it out."
            ) from error
    return opened
