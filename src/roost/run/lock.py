"""The lock that keeps two runs out of one folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from roost.errors import CheckpointError

LOCK_NAME = ".lock"


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

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


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
