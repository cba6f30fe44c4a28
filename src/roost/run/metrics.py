"""metrics.jsonl: a row a step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roost.errors import CheckpointError

Metrics = Mapping[str, float]


class MetricsLog:
    """Appends one JSON object a step; a line that a kill cut short is dropped on resume.

    Args:
        path: The file.
        resume_step: Rows after this step are dropped; None leaves the file as it is.
    """

    def __init__(self, path: Path, resume_step: int | None = 0) -> None:
        self._path = path
        if resume_step is not None and path.exists():
            kept = [row for row in read_metrics(path) if row["step"] <= resume_step]
            # Beside and then into place: a kill in between must not cost the rows before it.
            beside = path.with_name(f".{path.name}.part")
            beside.write_text("".join(json.dumps(row) + "\n" for row in kept))
            beside.replace(path)

    def append(self, row: Metrics) -> None:
        """Write a row. NaN and infinity become null: JSON has neither.

        Raises:
            CheckpointError: the disk is full or not writable.
        """
        clean = {k: v if math.isfinite(v) else None for k, v in row.items()}
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(clean) + "\n")
        except OSError as error:
            raise CheckpointError(
                f"'{self._path}' cannot be written: {error.strerror or error}. Checkpoints are "
                "untouched; make room and go on with --resume."
            ) from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a metrics file; a half-written last line is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().split("\n"):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
