"""A working folder to run commands in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.desk import Desk
from support.tiny_runs import TinyRun


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_run: TinyRun) -> Iterator[Desk]:
    """A folder of its own, which is the working directory; its runs are copies of ``full_run``."""
    desk = Desk(tmp_path, monkeypatch, full_run.folder.root)
    yield desk
    desk.clear()
