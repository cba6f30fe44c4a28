"""The folder of a new run: looked at first, taken late, and given back where no run came of it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from roost.errors import CheckpointError, ConfigError
from roost.run.folder import RunFolder
from roost.run.lock import LOCK_NAME, FolderLock, is_live

MINIMUM_FREE_BYTES = 64 * 2**20
"""A run does not start with less room than this besides its checkpoints."""


def check_new(root: Path) -> None:
    """Say whether a new run may use a folder. Makes nothing.

    Raises:
        CheckpointError: a live run uses it.
        ConfigError: it holds a run or other files, is a file, or cannot be written.
    """
    try:
        there = next(path for path in (root, *root.absolute().parents) if path.exists())
    except OSError as error:  # such as a name that is too long
        raise _not_writable(root, error.strerror or str(error)) from None
    if root.exists() and not root.is_dir():
        raise ConfigError(f"output.folder = '{root}' is a file. Name a new or empty folder.")
    if is_live(root):
        FolderLock(root).release()  # raises, naming the process
    if RunFolder(root).is_run:
        raise ConfigError(
            f"output.folder = '{root}' already holds a run. Go on with it by --resume {root}, or "
            "choose another folder."
        )
    if root.is_dir() and not _is_free(root):
        raise ConfigError(
            f"output.folder = '{root}' holds other files. Choose an empty or new folder."
        )
    if not there.is_dir():
        raise _not_writable(root, f"'{there}' is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _not_writable(root, f"'{there}' may not be written by you")


def _is_free(root: Path) -> bool:
    """Whether a folder is empty but for what a run leaves that was killed before it began."""
    there = list(root.iterdir())
    return not there or ((root / LOCK_NAME).exists() and all(map(_is_of_no_run, there)))


def _is_of_no_run(path: Path) -> bool:
    if path.name in ("samples", "checkpoints"):
        return path.is_dir() and not any(path.iterdir())
    return path.name in (
        LOCK_NAME,
        "environment.json",
        ".environment.json.part",
        "data.json",
        ".data.json.part",
        ".config.toml.part",
    )


def _not_writable(root: Path, why: str) -> ConfigError:
    return ConfigError(
        f"output.folder = '{root}' cannot be written: {why}. Choose another folder with --output."
    )


class Claim:
    """Makes and locks the folder of a new run; within ``with``, until ``keep`` the run may fail.

    What fails before ``keep`` leaves nothing behind: neither the folder nor those above it that
    were made for it.

    Args:
        root: As ``check_new`` allows.
        expected_bytes: What checkpoints and the final model will take.

    Raises:
        CheckpointError: a live run uses it.
        ConfigError: it cannot be used or written, or its disk is too full.
    """

    def __init__(self, root: Path, expected_bytes: int = 0) -> None:
        check_new(root)
        self.folder = RunFolder(root)
        self._kept = False
        self._missing = [path for path in (root, *root.parents) if not path.exists()]
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(root)
        except OSError as error:
            self._remove_made()
            raise _not_writable(root, error.strerror or str(error)) from error
        except CheckpointError:
            self._remove_made()
            raise
        try:
            self._fill(expected_bytes)
        except BaseException:
            self._give_back()
            raise

    def _fill(self, expected_bytes: int) -> None:
        try:
            self.folder.samples.mkdir(exist_ok=True)
            self.folder.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise _not_writable(self.folder.root, error.strerror or str(error)) from error
        check_room(self.folder.root, expected_bytes)

    def keep(self) -> None:
        """The run has begun: from now on its folder stays."""
        self._kept = True

    def _give_back(self) -> None:
        # The folder was empty when it was taken, so all in it is this run's.
        for path in self.folder.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._lock.release()
        self._remove_made()

    def _remove_made(self) -> None:
        with suppress(OSError):  # another run may have moved into a folder above in the meantime
            for path in self._missing:
                path.rmdir()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept:
            self._lock.release()
        else:
            self._give_back()


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
