"""From recipes, overrides and Python mappings to a checked configuration, and back to TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from roost.config.checks import check
from roost.config.problems import explain_all, listed
from roost.config.schema import RunConfig, Section
from roost.errors import ConfigError, did_you_mean

DEEPEST = 32
"""Tables and lists within each other; a run needs a few."""


def load_config(
    recipe: Path | None,
    overrides: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
) -> RunConfig:
    """A recipe with overrides applied.

    Args:
        recipe: A TOML file; None starts from the defaults.
        overrides: ``section.field=value``, the value as TOML or a bare string.
        base: Sections that go over the recipe and under the overrides.

    Raises:
        ConfigError: the file cannot be read, or the configuration is wrong; every problem is named.
    """
    mapping = read_recipe(recipe) if recipe is not None else {}
    check_depth(base, "the configuration")
    for layer in (base or {}, parse_overrides(overrides)):
        mapping = merge(mapping, layer)
    places = ([str(recipe)] if recipe is not None else []) + (["--set"] if overrides else [])
    return build_config(mapping, where=" with ".join(places) or None)


def build_config(mapping: Mapping[str, Any], where: str | None = None) -> RunConfig:
    """A configuration from nested mappings.

    Raises:
        ConfigError: one error that lists each problem: field, value, what is allowed.
    """
    check_depth(mapping, where or "the configuration")
    try:
        config = RunConfig.model_validate(dict(mapping))
    except ValidationError as error:
        raise ConfigError(listed(explain_all(error.errors()), where)) from None
    problems = list(check(config))
    if problems:
        raise ConfigError(listed(problems, where))
    return config


def read_recipe(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: it is not there, not TOML, or not text.
    """
    try:
        mapping = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, beside)
        if not hint and path.suffix != ".toml":
            hint = f" A recipe is a TOML file; for a model, write --set model.path={path}."
        raise ConfigError(f"recipe '{path}': no such file.{hint}") from None
    except IsADirectoryError:
        raise ConfigError(
            f"recipe '{path}' is a folder; a recipe is a TOML file. For a model's folder, write "
            f"--set model.path={path}; for a run's, --resume {path}."
        ) from None
    except OSError as error:
        raise ConfigError(f"recipe '{path}' cannot be read: {error.strerror or error}.") from None
    except RecursionError:
        raise _too_deep(f"recipe '{path}'") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"recipe '{path}' is not UTF-8 text: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"recipe '{path}' is not TOML: {error}. Text stands in quotes: model = \"tiny\"."
        ) from None
    check_depth(mapping, f"recipe '{path}'")
    return mapping


def check_depth(value: Any, where: str) -> None:
    """Refuse what is nested so deeply that reading it would exhaust the stack.

    Raises:
        ConfigError: it is deeper than ``DEEPEST``, or holds itself.
    """
    left = [(value, 0)]
    while left:
        outer, depth = left.pop()
        if depth > DEEPEST:
            raise _too_deep(where)
        left += [(inner, depth + 1) for inner in _within(outer)]


def _within(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _too_deep(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: its tables or lists are nested too deeply: more than {DEEPEST} in each other."
    )


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """``["train.steps=5", "model=tiny"]`` as nested mappings.

    Raises:
        ConfigError: one has no ``=``, or no name before it, or sets more than one field.
    """
    mapping: dict[str, Any] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        keys = [key.strip() for key in name.split(".")]
        if not equals or not all(keys):
            raise ConfigError(
                f"--set {override!r}: write section.field=value, such as --set train.steps=100"
            )
        if len(keys) > DEEPEST:
            raise _too_deep(f"--set {name[:40]}...")
        value = _parse_value(text.strip(), name)
        for key in reversed(keys):
            value = {key: value}
        mapping = merge(mapping, value)
    return mapping


def _parse_value(text: str, name: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        raise _too_deep(f"--set {name}") from None
    if len(parsed) > 1:
        more = text.partition("\n")[2]
        raise ConfigError(
            f"--set {name}: its value goes on with {more!r}, a field of its own. Give each field a "
            "--set of its own; for text of several lines, quotes around all of it."
        )
    check_depth(parsed, f"--set {name}")
    return parsed["value"]


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``under``, table by table; a bare section value is its main field."""
    merged = deepcopy(dict(under))
    for name, value in over.items():
        section = _section(name)
        below = merged.get(name)
        if section is not None and section.main_field is not None:
            value = value if isinstance(value, Mapping) else {section.main_field: value}
            if below is not None and not isinstance(below, Mapping):
                below = {section.main_field: below}
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            # Free-form tables (options and the like) are replaced field by field as well.
            merged[name] = merge_tables(below, value)
        else:
            merged[name] = deepcopy(value)
    return merged


def merge_tables(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, the later one winning field by field; an empty one clears what is there."""
    merged = dict(under)
    for name, value in over.items():
        below = merged.get(name)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping) and len(value) > 0
        merged[name] = merge_tables(below, value) if nested else deepcopy(value)  # type: ignore[arg-type]
    return merged


def dump_toml(config: RunConfig) -> str:
    """The resolved configuration as TOML; fields that are None are left out, which TOML lacks."""
    return tomli_w.dumps(_without_none(config.model_dump()))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value


def quickstart_path() -> Path:
    """The recipe that ``roost train`` runs when none is given."""
    return Path(str(files("roost") / "assets" / "quickstart.toml"))


def quickstart_mapping() -> dict[str, Any]:
    """The quickstart recipe as nested mappings."""
    return read_recipe(quickstart_path())


def _section(name: str) -> type[Section] | None:
    field = RunConfig.model_fields.get(name)
    inner = field.annotation if field is not None else None
    return inner if isinstance(inner, type) and issubclass(inner, Section) else None
