"""What keeps two runs out of one folder, and out of one process."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from roost.errors import CheckpointError, RoostError

LOCK_NAME = ".lock"
_TRIES, _BETWEEN_S = 5, 0.05


class FolderLock:
    """Held by the process that writes a run folder; the kernel drops it when that process dies.

    Args:
        root: A folder that is there.

    Raises:
        CheckpointError: a live process holds it (its number is named), or it cannot be written.
    """

    def __init__(self, root: Path) -> None:
        try:
            self._file: IO[str] = (root / LOCK_NAME).open("a+")
        except OSError as error:
            raise CheckpointError(
                f"the run folder '{root}' cannot be written: {error.strerror or error}. Make it "
                "writable, or copy the run elsewhere."
            ) from error
        if not self._taken():
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise CheckpointError(
                f"the run folder '{root}' is in use by process {holder}. Wait for it, or stop it."
            )
        self._file.seek(0)
        self._file.truncate()
        self._file.write(str(os.getpid()))
        self._file.flush()

    def _taken(self) -> bool:
        """Try for a moment: ``is_live`` holds it for an instant, and a new holder needs one to say
        its number."""
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_BETWEEN_S)
            else:
                return True
        return False

    def release(self) -> None:
        """Let others write the folder."""
        self._file.close()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_AT_WORK = threading.Lock()


@contextmanager
def alone_in_process() -> Iterator[None]:
    """Keep other threads of this process from training or evaluating at the same time.

    Loading a model, signals and torch's settings belong to the whole process.

    Raises:
        RoostError: another thread is at it.
    """
    if not _AT_WORK.acquire(blocking=False):
        raise RoostError(
            "another thread of this process trains or evaluates already, and a process does one "
            "at a time. Wait for it, or start this one in a process of its own."
        )
    try:
        yield
    finally:
        _AT_WORK.release()


def is_live(root: Path) -> bool:
    """Whether some process holds the folder's lock."""
    path = root / LOCK_NAME
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
