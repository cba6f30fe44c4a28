"""The manifest of a checkpoint: size and SHA-256 of each of its files, written last."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from roost import __version__
from roost.errors import CheckpointError

FORMAT = 1
"""Rises when a checkpoint written before can no longer be read."""


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None: every file is compared with ``manifest.json``.

    Raises:
        CheckpointError: its format is another version's.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        written, files = manifest["format"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its manifest.json cannot be read ({type(error).__name__}: {error})"
    if written != FORMAT:
        raise CheckpointError(
            f"checkpoint '{path}' was written by Roost {manifest.get('roost')} in format "
            f"{written}; Roost {__version__} reads format {FORMAT}. Resume with the "
            "version that wrote it."
        )
    for name, entry in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {entry['bytes']}"
        if _sha256(file) != entry["sha256"]:
            return f"{name} does not have the checksum it was written with"
    return None


def make(folder: Path, step: int) -> dict[str, Any]:
    """The manifest of the files in a folder."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.iterdir())
    }
    return {"format": FORMAT, "roost": __version__, "step": step, "files": files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
