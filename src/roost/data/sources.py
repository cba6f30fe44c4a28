"""Rows from files, hubs, tasks and generators: dictionaries with a prompt and other columns."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from roost.errors import DataError, did_you_mean
from roost.references import load_reference

Row = dict[str, Any]


def read_rows(
    source: Any,
    *,
    options: Mapping[str, Any],
    split: str = "train",
    limit: int | None = None,
    base_dir: Path | None = None,
) -> list[Row]:
    """The rows of a prompt source.

    Args:
        source: A name as in ``data.source``, or a Python object: rows, a ``datasets.Dataset``, an
            iterable, or a function that returns one.
        options: ``data.options``.
        split: Split of a hub dataset.
        limit: Most rows to read.
        base_dir: Where relative paths start.

    Raises:
        DataError: it cannot be read, and why; a bad row is named by its line.
    """
    rows = list(islice(_open(source, dict(options), split, base_dir or Path.cwd()), limit))
    if not rows:
        raise DataError(f"data.source = {_name(source)}: holds no rows.")
    return rows


def _name(source: Any) -> str:
    return repr(source) if isinstance(source, str) else f"<{type(source).__name__}>"


def _open(source: Any, options: dict[str, Any], split: str, base_dir: Path) -> Iterator[Row]:
    if not isinstance(source, str):
        return _from_object(source, options)
    if source == "arithmetic":
        return _from_call(import_module("roost.data.arithmetic").rows, options, source)
    if source.startswith("reasoning_gym:"):
        return _from_reasoning_gym(source.partition(":")[2], options)
    reader = _READERS.get(Path(source).suffix)
    if reader is not None:
        path = _existing(source, base_dir)
        return _checked_rows(_read_text_errors(reader, path), source)
    if ":" in source:
        function = load_reference(source, base_dir, field="data.source", error=DataError)
        return _from_call(function, options, source)
    return _from_hub(source, options, split, base_dir)


def _existing(source: str, base_dir: Path) -> Path:
    path = base_dir / Path(source).expanduser()
    if path.is_file():
        return path
    beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = did_you_mean(path.name, beside)
    hint = near if "Did you mean" in near else ""
    raise DataError(f"data.source = {source!r}: no such file in '{path.parent}'.{hint}")


def _read_text_errors(reader: Callable[[Path], Iterator[Any]], path: Path) -> Iterator[Any]:
    try:
        yield from reader(path)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}") from error


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(f"'{path}' line {number:,} is not UTF-8: {error}") from None
            except ValueError as error:
                raise DataError(f"'{path}' line {number:,} is not JSON: {error}") from None


def _json_array(path: Path) -> Iterator[Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}' is not UTF-8: {error}") from None
    except ValueError as error:
        raise DataError(
            f"'{path}' is not JSON: {error}. Files with a JSON object a line end in .jsonl."
        ) from None
    if not isinstance(value, list):
        raise DataError(
            f"'{path}' holds a JSON {type(value).__name__}; an array of rows is needed."
        )
    yield from value


def _csv(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(
                        f"'{path}' line {reader.line_num:,} has another number of fields than the "
                        "header."
                    )
                yield row
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}' is not UTF-8: {error}") from None
    except csv.Error as error:
        raise DataError(f"'{path}' is not CSV: {error}") from None


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        raise DataError(f"'{path}' is not Parquet: {error}") from None


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".jsonl": _json_lines,
    ".json": _json_array,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _from_reasoning_gym(task: str, options: dict[str, Any]) -> Iterator[Row]:
    """Problems of a procedural task; ``entry`` is what its own scorer needs."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise DataError(
            f"data.source = 'reasoning_gym:{task}': no such task.{did_you_mean(task, DATASETS)}"
        )
    try:
        dataset = reasoning_gym.create_dataset(task, **{"size": 500, "seed": 0, **options})
    except (TypeError, AssertionError, ValueError) as error:
        raise DataError(f"data.options for reasoning_gym:{task}: {error}") from None
    for entry in dataset:
        yield {
            "prompt": entry["question"],
            "answer": entry["answer"],
            "task": task,
            "entry": entry,
        }


def _from_hub(source: str, options: dict[str, Any], split: str, base_dir: Path) -> Iterator[Row]:
    if "/" not in source or source.startswith(("/", ".", "~")):
        raise DataError(
            f"data.source = {source!r}: is none of: 'arithmetic', 'reasoning_gym:TASK', a .jsonl, "
            ".json, .csv or .parquet file, 'file.py:function', or a hub id with a slash in it."
        )
    import datasets

    try:
        dataset = datasets.load_dataset(source, split=split, **options)
    except (OSError, ValueError, ConnectionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"data.source = {source!r}: the hub gave no such dataset: {reason} Check the id, "
            "data.split and the network, or give a local file."
        ) from None
    yield from _checked_rows(dataset, source)


def _from_call(function: Callable[..., Any], options: dict[str, Any], source: str) -> Iterator[Row]:
    try:
        result = function(**options)
    except TypeError as error:
        raise DataError(f"data.source = {source!r} does not take data.options: {error}") from error
    return _checked_rows(result, source)


def _from_object(source: Any, options: dict[str, Any]) -> Iterator[Row]:
    if callable(source):
        return _from_call(source, options, getattr(source, "__name__", "function"))
    if not isinstance(source, Iterable):
        raise DataError(
            f"data = {type(source).__name__}: should be rows, a dataset, or a function that "
            "yields rows."
        )
    return _checked_rows(source, type(source).__name__)


def _checked_rows(rows: Iterable[Any], source: str) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {number:,} of {source!r} is a {type(row).__name__}; a mapping of columns is "
                "needed."
            )
        yield dict(row)
