"""Values that config.toml cannot hold, or that nobody can mean."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from roost.config.schema import RunConfig

_OF_TOML = (str, int, float, bool, datetime.date, datetime.time)
_PATHS = (
    "model.path",
    "model.revision",
    "model.tokenizer",
    "data.source",
    "eval.source",
    "rollout.token_file",
    "output.folder",
)
"""Fields that may be paths."""


def check_values(config: RunConfig) -> Iterator[str]:
    """Each value that a run could not write down, as a sentence that says what it may be."""
    for name, value in _leaves("", config.model_dump()):
        if isinstance(value, str):
            yield from _check_text(name, value)
        elif not isinstance(value, _OF_TOML):
            yield (
                f"{name} = {value!r:.80}: config.toml cannot hold a {type(value).__name__}; give "
                "text, a number, true or false, or lists and tables of these"
            )


def _check_text(name: str, text: str) -> Iterator[str]:
    try:
        text.encode()
    except UnicodeEncodeError:
        yield f"{name} = {text!r:.80}: is not UTF-8 text, which config.toml is written in"
    else:
        if "\0" in text and name in _PATHS:
            yield f"{name} = {text!r:.80}: holds a zero byte, which no path or name may"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every single value with its name; tables leave out what is None."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if inner is not None:
                yield from _leaves(f"{name}.{key}".lstrip("."), inner)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _leaves(f"{name}.{number}", inner)
    else:
        yield name, value
