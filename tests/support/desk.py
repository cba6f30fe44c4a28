"""A person's working folder: recipes, data, reward files, model folders and runs in a few words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
from safetensors.torch import load_file, save_file
from torch import Tensor

from roost.config.loading import merge
from roost.model.source import tiny_model_folder

SMALL_RUN: dict[str, Any] = {
    "model": "tiny",
    "data": {"source": "arithmetic", "prompts_per_step": 2},
    "rewards": ["numeric"],
    "rollout": {"generations": 2, "max_completion_tokens": 8},
    "train": {"steps": 2, "learning_rate": 1e-4},
    "eval": {"prompts": 2},
    "output": {"folder": "run", "checkpoint_every": 1},
}
"""What a recipe of the desk says unless told otherwise."""


class Desk:
    """Makes files under one folder, which is also the working directory.

    Args:
        root: The folder.
        patch: Undoes at the test's end what a case changes outside of the folder.
        finished_run: A run of ``SMALL_RUN`` to copy from.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, finished_run: Path) -> None:
        self.root = root
        self.patch = patch
        self._finished_run = finished_run
        self._cleanups: list[Callable[[], None]] = []
        patch.chdir(root)

    def write(self, name: str, content: str | bytes) -> str:
        """A file; returns its name."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    def rows(self, rows: Iterable[Any], name: str = "data.jsonl") -> str:
        """A file of JSON lines; returns its name."""
        return self.write(name, "".join(f"{json.dumps(row)}\n" for row in rows))

    def problems(self, count: int, **columns: Any) -> list[dict[str, Any]]:
        """Rows of small sums, with further columns."""
        return [{"prompt": f"{i}+1=", "answer": i + 1, **columns} for i in range(count)]

    def recipe(self, sections: Mapping[str, Any], name: str = "recipe.toml") -> str:
        """A recipe: the small run with some sections laid over it."""
        return self.write(name, tomli_w.dumps(merge(SMALL_RUN, sections)))

    def check(self, **sections: Any) -> list[str]:
        """Arguments that check a recipe and load no weights."""
        return ["train", self.recipe(sections), "--dry-run", "--json"]

    def train(self, **sections: Any) -> list[str]:
        """Arguments that train a recipe."""
        return ["train", self.recipe(sections), "--json"]

    def set(self, *overrides: str) -> list[str]:
        """Arguments that check the small run with overrides."""
        return [*self.check(), *(part for text in overrides for part in ("--set", text))]

    def model(self, *, without: str = "", config: Mapping[str, Any] | None = None) -> str:
        """A copy of the tiny model, without some file, with changes to its config.json."""
        folder = self.root / "model"
        shutil.copytree(tiny_model_folder(), folder)
        for path in folder.glob(without) if without else ():
            path.unlink()
        if config is not None:
            self.change_json("model/config.json", config)
        return "model"

    def change_json(self, name: str, changes: Mapping[str, Any]) -> None:
        """Set some keys of a JSON file."""
        path = self.root / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def weights(self, model: str) -> dict[str, Tensor]:
        """The tensors of a model folder."""
        return load_file(self.root / model / "model.safetensors")

    def set_weights(self, model: str, weights: dict[str, Tensor]) -> None:
        """Replace the tensors of a model folder."""
        save_file(weights, self.root / model / "model.safetensors", metadata={"format": "pt"})

    def run(self, name: str = "run") -> str:
        """A finished run of two steps with a checkpoint after each; returns its folder."""
        shutil.copytree(self._finished_run, self.root / name)
        return name

    def after(self, cleanup: Callable[[], None]) -> None:
        """Call something at the test's end."""
        self._cleanups.append(cleanup)

    def clear(self) -> None:
        """The test's end."""
        for cleanup in self._cleanups:
            cleanup()

    def fill_disk(self) -> None:
        """From now on every disk says that it is full."""
        self.patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))

    def files(self) -> set[str]:
        """All that is there, but for what Python keeps beside imported files."""
        paths = (str(path.relative_to(self.root)) for path in self.root.rglob("*"))
        return {path for path in paths if "__pycache__" not in path}
