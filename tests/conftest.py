"""Two finished runs of the shipped model, full and LoRA, made once for all tests that read one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.tiny_runs import TinyRun, train_tiny


@pytest.fixture(scope="session", autouse=True)
def no_measurements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a pilot has measured on this machine must not change what tests see of a plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOST_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """Two steps of full training, an evaluation at both ends. Read it, never write to it."""
    return train_tiny(tmp_path_factory.mktemp("full") / "run", Path.cwd())


@pytest.fixture(scope="session")
def lora_run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The same with an adapter."""
    sections: dict[str, Any] = {"train": {"method": "lora", "learning_rate": 1e-2}}
    return train_tiny(tmp_path_factory.mktemp("lora") / "run", Path.cwd(), sections)
