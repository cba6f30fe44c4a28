"""The run folder: what is in it, and the lock that keeps two runs out of one.

::

    config.toml          the resolved configuration
    environment.json     versions, device, seed, and which model it was
    metrics.jsonl        one JSON object a step
    samples/             step-000012.parquet: prompt, completion, rewards, advantage, ...
    checkpoints/step-12/ what resume needs, checked when read
    final/               the trained model or adapter, with its tokenizer
    ledger.json          the plan beside what was measured
    report.json          how the run ended
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from roost.errors import CheckpointError, ConfigError

MINIMUM_FREE_BYTES = 64 * 2**20
"""A run does not start with less room than this besides its checkpoints."""


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
    """``runs/<model>-<date>-<time>``, the name that a run gets unless told otherwise."""
    return Path("runs") / f"{Path(model_path).name}-{now:%Y%m%d-%H%M%S}"


def create(root: Path, expected_bytes: int = 0) -> RunFolder:
    """Make the folder of a new run.

    Args:
        root: Must not hold a run already.
        expected_bytes: What checkpoints and the final model will take.

    Raises:
        ConfigError: it holds a run, cannot be written, or its disk is too full.
    """
    folder = RunFolder(root)
    if folder.is_run:
        raise ConfigError(
            f"output.folder = '{root}' already holds a run. Go on with it by --resume {root}, or "
            "choose another folder."
        )
    if root.is_dir() and any(p.name != LOCK_NAME for p in root.iterdir()):
        raise ConfigError(
            f"output.folder = '{root}' holds other files. Choose an empty or new folder."
        )
    try:
        folder.samples.mkdir(parents=True, exist_ok=True)
        folder.checkpoints.mkdir(exist_ok=True)
        probe = root / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"output.folder = '{root}' cannot be written: {error.strerror or error}. "
            "Choose another folder with --output."
        ) from error
    check_room(root, expected_bytes)
    return folder


def check_room(root: Path, expected_bytes: int) -> None:
    """Say at the start that a disk is too full for what the run will write.

    Raises:
        ConfigError: less is free than ``expected_bytes`` and some for metrics and samples.
    """
    free = shutil.disk_usage(root).free
    needed = expected_bytes + MINIMUM_FREE_BYTES
    if free < needed:
        raise ConfigError(
            f"output.folder = '{root}': {free / 1e9:.2f} GB are free and the run will write about "
            f"{needed / 1e9:.2f} GB. Free some, choose another disk with --output, or lower "
            "output.keep_checkpoints."
        )


LOCK_NAME = ".lock"


class FolderLock:
    """Held by the process that writes a run folder; the kernel drops it when that process dies.

    Raises:
        CheckpointError: a live process holds it; its number is named.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        path = root / LOCK_NAME
        self._file: IO[str] = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise CheckpointError(
                f"the run folder '{root}' is in use by process {holder}. Wait for it, or stop it."
            ) from None
        self._file.seek(0)
        self._file.truncate()
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Let others write the folder."""
        self._file.close()


def is_live(root: Path) -> bool:
    """Whether some process holds the folder's lock."""
    path = root / LOCK_NAME
    if not path.exists():
        return False
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
