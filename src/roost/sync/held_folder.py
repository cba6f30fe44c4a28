"""Folders that a process holds while it lives, and that whoever comes next removes after it.

A process that is killed removes nothing, and what it leaves in ``/dev/shm`` is memory. So each
holds its folder by a lock that the kernel drops when the process ends, in whichever way; a number
of a process would be given to another one some day, and means nothing in another container.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

_SUFFIX = ".held"


class HeldFolder:
    """A new folder of this user alone; making one removes those whose process has died.

    Args:
        kind: What it is for, in its name.
        in_memory: Have it in ``/dev/shm`` where there is one, and not among temporary files.
    """

    def __init__(self, kind: str, *, in_memory: bool = True) -> None:
        memory = Path("/dev/shm")
        base = memory if in_memory and memory.is_dir() else Path(tempfile.gettempdir())
        remove_left(base)
        self.path, handle = _make(base, kind)
        self._remove = weakref.finalize(self, _remove, self.path, handle, os.getpid())

    def close(self) -> None:
        """Remove it and what is in it; otherwise Python does when it ends, unless it is killed."""
        self._remove()


def remove_left(base: Path) -> None:
    """Remove the folders of this kind in ``base`` that no process holds."""
    for path in base.glob(f"roost-*{_SUFFIX}"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # of another user, no folder, or removed by someone else just now
            continue
        try:
            if os.fstat(handle).st_uid == os.geteuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)


def _make(base: Path, kind: str) -> tuple[Path, int]:
    """The folder and the handle that holds it: held before it has the name of one that is."""
    made = Path(tempfile.mkdtemp(prefix=f"roost-{kind}-", dir=base))
    handle = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return made.rename(made.with_name(f"{made.name}{_SUFFIX}")), handle


def _remove(path: Path, handle: int, owner: int) -> None:
    # A fork of the owner has the handle too, and ends before it.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)
