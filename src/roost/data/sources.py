"""Rows from files, hubs, tasks and generators: dictionaries with a prompt and other columns."""

from __future__ import annotations

import csv
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from roost.errors import DataError, RoostError, did_you_mean, nearest
from roost.references import describe, load_reference

Row = dict[str, Any]

FROM_PYTHON = "(given from Python)"
"""Stands in a configuration for prompts that were Python objects."""

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


def read_rows(
    source: Any,
    *,
    options: Mapping[str, Any],
    split: str = "train",
    limit: int | None = None,
    base_dir: Path | None = None,
    section: str = "data",
) -> list[Row]:
    """The rows of a prompt source.

    Args:
        source: A name as in ``data.source``, or a Python object: rows, a ``datasets.Dataset``, an
            iterable, or a function that returns one.
        options: ``data.options``.
        split: Split of a hub dataset.
        limit: Most rows to read.
        base_dir: Where relative paths start.
        section: Whose source it is, for messages: ``data`` or ``eval``.

    Raises:
        DataError: it cannot be read, and why; a bad row is named by its line.
    """
    place = _Place(section, base_dir or Path.cwd())
    rows = list(islice(_open(source, dict(options), split, place), limit))
    if not rows:
        raise DataError(
            f"{place.field} = {_name(source)}: holds no rows; at least one prompt is needed."
        )
    return rows


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a source was named: the configuration's section, and the recipe's folder."""

    section: str
    base_dir: Path

    @property
    def field(self) -> str:
        return f"{self.section}.source"

    @property
    def options(self) -> str:
        return f"{self.section}.options"


def _name(source: Any) -> str:
    return repr(source) if isinstance(source, str) else f"<{type(source).__name__}>"


def _open(source: Any, options: dict[str, Any], split: str, place: _Place) -> Iterator[Row]:
    if not isinstance(source, str):
        return _from_object(source, options, place)
    if source == FROM_PYTHON:
        raise DataError(
            f"{place.field} = {source!r}: the run's prompts were Python objects. Give them again, "
            "as data=... of roost.train or roost.evaluate, or name a source, such as a file."
        )
    if source == "arithmetic":
        return _from_call(import_module("roost.data.arithmetic").rows, options, source, place)
    if source.startswith("reasoning_gym:"):
        return _from_reasoning_gym(source.partition(":")[2], options, place)
    reader = _READERS.get(Path(source).suffix.lower())
    if reader is not None:
        return _from_file(reader, source, options, place)
    if ":" in source:
        function = load_reference(source, place.base_dir, field=place.field, error=DataError)
        return _from_call(function, options, source, place)
    return _from_hub(source, options, split, place)


def _from_file(
    reader: Callable[[Path], Iterator[Any]], source: str, options: dict[str, Any], place: _Place
) -> Iterator[Row]:
    path = _existing(source, place)
    if options:
        raise DataError(
            f"{place.options} = {options!r}: a file such as {source!r} takes none. Remove them."
        )
    return _checked_rows(_read_text_errors(reader, path), source)


def _existing(source: str, place: _Place) -> Path:
    path = place.base_dir / Path(source).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise DataError(
            f"{place.field} = {source!r}: '{path}' is a folder. Name a file in it, or "
            "put its files together into one."
        )
    folder = path.parent.resolve()
    if not folder.is_dir():
        raise DataError(f"{place.field} = {source!r}: there is no folder '{folder}'.")
    near = nearest(path.name, [p.name for p in folder.iterdir()])
    hint = f"Did you mean {near!r}?" if near else "Relative paths start at the recipe's folder."
    raise DataError(f"{place.field} = {source!r}: no such file in '{folder}'. {hint}")


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
                yield json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise _not_utf8(f"'{path}' line {number:,}", error) from None
            except json.JSONDecodeError as error:
                raise DataError(
                    f"'{path}' line {number:,} is not JSON: {error.msg.removesuffix(' at')} at "
                    f"character {error.pos}. "
                    "A .jsonl file holds one whole JSON object a line; mend or remove the line."
                ) from None
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"'{path}' line {number:,} cannot be read: {_beyond(error)}. Mend or remove "
                    "the line."
                ) from None


def _json_array(path: Path) -> Iterator[Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _not_utf8(f"'{path}'", error) from None
    except RecursionError as error:
        raise DataError(f"'{path}' cannot be read: {_beyond(error)}. Mend it.") from None
    except ValueError as error:
        raise DataError(
            f"'{path}' is not JSON: {error}. Files with a JSON object a line end in .jsonl."
        ) from None
    if not isinstance(value, list):
        raise DataError(
            f"'{path}' holds a JSON {type(value).__name__}; an array of rows is needed."
        )
    yield from value


def _beyond(error: Exception) -> str:
    """JSON that is right and yet more than Python reads."""
    if isinstance(error, RecursionError):
        return "its lists or objects are nested too deeply"
    return str(error).partition(";")[0]


def _csv(path: Path) -> Iterator[Any]:
    try:
        # Spreadsheets begin their UTF-8 files with a mark, which is no part of the first name.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            twice = next((name for name in header if header.count(name) > 1), None)
            if twice is not None:
                raise DataError(f"'{path}' has two columns {twice!r}. Rename one of them.")
            for values in filter(None, reader):
                if len(values) != len(header):
                    raise DataError(
                        f"'{path}' line {reader.line_num:,} has {len(values)} fields and the "
                        f"header {len(header)}. Put fields that hold commas in double quotes."
                    )
                yield dict(zip(header, values, strict=True))
    except UnicodeDecodeError as error:
        raise _not_utf8(f"'{path}'", error) from None
    except csv.Error as error:
        raise DataError(f"'{path}' is not CSV: {error} (line {reader.line_num:,}).") from None


def _not_utf8(what: str, error: UnicodeDecodeError) -> DataError:
    byte = error.object[error.start]
    return DataError(
        f"{what} is not UTF-8: byte 0x{byte:02x} at {error.start:,}. Save the file as UTF-8."
    )


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


def _from_reasoning_gym(task: str, options: dict[str, Any], place: _Place) -> Iterator[Row]:
    """Problems of a procedural task; ``entry`` is what its own scorer needs."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise DataError(
            f"{place.field} = 'reasoning_gym:{task}': no such task."
            f"{did_you_mean(task, DATASETS) or f' There are {len(DATASETS)}, such as chain_sum.'}"
        )
    allowed = [field.name for field in fields(DATASETS[task][1])]
    for name in options:
        if name not in allowed:
            raise DataError(
                f"{place.options}: reasoning_gym:{task} has no option {name!r}."
                f"{did_you_mean(name, allowed)}"
            )
    try:
        dataset = reasoning_gym.create_dataset(task, **{"size": 500, "seed": 0, **options})
    except (TypeError, AssertionError, ValueError) as error:
        raise DataError(
            f"{place.options} = {options!r}: reasoning_gym:{task} refuses them: {error}."
        ) from None
    for entry in dataset:
        yield {
            "prompt": entry["question"],
            "answer": entry["answer"],
            "task": task,
            "entry": entry,
        }


def _from_hub(source: str, options: dict[str, Any], split: str, place: _Place) -> Iterator[Row]:
    path = place.base_dir / Path(source).expanduser()
    if not _HUB_ID.match(source) or path.exists():
        raise _no_source(source, path, place)
    for name in {"path", "split"} & options.keys():
        field = place.field if name == "path" else "data.split"
        raise DataError(f"{place.options}: {name!r} is set by {field}, not here. Move it there.")
    import datasets

    try:
        dataset = datasets.load_dataset(source, split=split, **options)
    except (OSError, ValueError, TypeError, datasets.exceptions.DatasetsError) as error:
        said = str(error).strip() or type(error).__name__
        reason = said.splitlines()[0].rstrip(".")
        raise DataError(
            f"{place.field} = {source!r}: no such file here, and the hub gave no such dataset: "
            f"{reason}. Check the id, data.split and the network, or give a local file."
        ) from None
    yield from _checked_rows(dataset, source)


def _no_source(source: str, path: Path, place: _Place) -> DataError:
    hint = ""
    if path.suffix == ".py":
        hint = f" Name a function in it: '{source}:function'."
    elif path.is_file():
        hint = f" A file that ends in {path.suffix!r} is not read: convert it."
    elif near := nearest(source, ["arithmetic"]):
        hint = f" Did you mean {near!r}?"
    return DataError(
        f"{place.field} = {source!r}: is none of: 'arithmetic', 'reasoning_gym:TASK', a .jsonl, "
        f".json, .csv or .parquet file, 'file.py:function', or a hub id 'owner/name'.{hint}"
    )


def _from_call(
    function: Callable[..., Any], options: dict[str, Any], source: str, place: _Place
) -> Iterator[Row]:
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise DataError(
            f"{place.options} = {options!r}: {source!r} does not take them: {error}. "
            f"It takes {inspect.signature(function)}."
        ) from None
    return _checked_rows(_blamed(function, options, source, place), source)


def _blamed(
    function: Callable[..., Any], options: dict[str, Any], source: str, place: _Place
) -> Iterator[Any]:
    """What a function gives; whatever it raises says that it was the function, and where."""
    number = 0
    try:
        result = function(**options)
        if not isinstance(result, Iterable):
            raise DataError(
                f"{place.field} = {source!r} returned a {type(result).__name__}; it should yield "
                "or return rows."
            )
        for number, row in enumerate(result, 1):  # noqa: B007 - read in the except clause
            yield row
    except RoostError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(
            f"{place.field} = {source!r} raised {describe(error)} after {number:,} rows. "
            "Mend the function."
        ) from error


def _from_object(source: Any, options: dict[str, Any], place: _Place) -> Iterator[Row]:
    if callable(source):
        return _from_call(source, options, getattr(source, "__name__", "function"), place)
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
                f"row {number:,} of {source!r} is a {type(row).__name__}, {_short(row)}; a mapping "
                "of columns is needed, such as {'prompt': '1+1=', 'answer': '2'}."
            )
        odd = next((name for name in row if not isinstance(name, str)), None)
        if odd is not None:
            raise DataError(
                f"row {number:,} of {source!r}: a column is called {odd!r}, a "
                f"{type(odd).__name__}; names of columns are texts."
            )
        yield dict(row)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
