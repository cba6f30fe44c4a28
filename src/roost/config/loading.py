"""From recipes, overrides and Python mappings to a checked configuration, and back to TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from roost.config.checks import check
from roost.config.schema import RunConfig, Section
from roost.errors import ConfigError, did_you_mean


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
    for layer in (base or {}, parse_overrides(overrides)):
        mapping = merge(mapping, layer)
    places = ([str(recipe)] if recipe is not None else []) + (["--set"] if overrides else [])
    return build_config(mapping, where=" with ".join(places) or None)


def build_config(mapping: Mapping[str, Any], where: str | None = None) -> RunConfig:
    """A configuration from nested mappings.

    Raises:
        ConfigError: one error that lists each problem: field, value, what is allowed.
    """
    try:
        config = RunConfig.model_validate(dict(mapping))
    except ValidationError as error:
        raise ConfigError(_listed(_explain_all(error.errors()), where)) from None
    problems = list(check(config))
    if problems:
        raise ConfigError(_listed(problems, where))
    return config


def read_recipe(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: it is not there, not TOML, or not text.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
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
        raise ConfigError(f"recipe '{path}': its tables or lists are nested too deeply.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"recipe '{path}' is not UTF-8 text: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"recipe '{path}' is not TOML: {error}. Text stands in quotes: model = \"tiny\"."
        ) from None


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """``["train.steps=5", "model=tiny"]`` as nested mappings.

    Raises:
        ConfigError: one has no ``=``, or no name before it.
    """
    mapping: dict[str, Any] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        keys = [key.strip() for key in name.split(".")]
        if not equals or not all(keys):
            raise ConfigError(
                f"--set {override!r}: write section.field=value, such as --set train.steps=100"
            )
        value = _parse_value(text.strip())
        for key in reversed(keys):
            value = {key: value}
        mapping = merge(mapping, value)
    return mapping


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


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


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """One field of a recipe, for ``roost config``."""

    name: str
    """Dotted, as ``--set`` takes it. Fields of a list's items, which ``--set`` cannot reach, have
    ``[]`` after the list's name: ``rewards.functions[].weight``."""
    type: str
    default: str
    """As it would stand in a recipe; ``unset`` where the field may be left out."""
    doc: str

    @property
    def dotted(self) -> str:
        """The name without ``[]``."""
        return self.name.replace("[]", "")


def settable_names() -> list[str]:
    """What ``--set`` can set."""
    return [field.name for field in describe_fields() if "[]" not in field.name]


def describe_fields() -> list[FieldInfo]:
    """Every field, in the order of the schema; those of a list's items after their section's."""
    return list(_describe(RunConfig, ""))


def _describe(section: type[BaseModel], prefix: str) -> Iterator[FieldInfo]:
    items: list[tuple[type[BaseModel], str]] = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _describe(inner, f"{prefix}{name}.")
            continue
        items += [(s, f"{prefix}{name}[].") for s in get_args(inner) if _is_section(s)]
        default = field.get_default(call_default_factory=True)
        yield FieldInfo(
            name=f"{prefix}{name}",
            type=_type_text(field.annotation),
            default="required" if default is PydanticUndefined else _value_text(default),
            doc=" ".join((field.description or "").split()),
        )
    for item, name in items:
        yield from _describe(item, name)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _value_text(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        value = [getattr(item, item.main_field or "") for item in value]
    if isinstance(value, list):
        return f"[{', '.join(map(_value_text, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip() if value != {} else "{}"


def _type_text(annotation: Any) -> str:
    if annotation is type(None):
        return "unset"
    arguments = get_args(annotation)
    if not arguments:
        return getattr(annotation, "__name__", str(annotation))
    if all(isinstance(argument, str) for argument in arguments):
        return " | ".join(f'"{argument}"' for argument in arguments)
    inner = [_type_text(argument) for argument in arguments]
    if get_origin(annotation) in (list, dict):
        return f"{get_origin(annotation).__name__}[{', '.join(inner)}]"
    return " | ".join(text for text in inner if text != "unset")


def _section(name: str) -> type[Section] | None:
    field = RunConfig.model_fields.get(name)
    inner = field.annotation if field is not None else None
    return inner if isinstance(inner, type) and issubclass(inner, Section) else None


def _explain_all(details: Sequence[ErrorDetails]) -> list[str]:
    """Each problem once: pydantic reports one for each branch of a union."""
    paths = [_path(detail) for detail in details]
    problems: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for path, detail in zip(paths, details, strict=True):
        # The branch that looked inside the value says more than the one that refused it whole.
        if not any(len(p) > len(path) and p[: len(path)] == path for p in paths):
            problems.setdefault(path, []).append(detail)
    return [_explain(path, details) for path, details in problems.items()]


def _path(detail: ErrorDetails) -> tuple[int | str, ...]:
    return tuple(part for part in detail["loc"] if not _is_union_branch(part))


def _explain(path: Sequence[int | str], details: Sequence[ErrorDetails]) -> str:
    """One problem that pydantic found, in our words."""
    name = ".".join(str(part) for part in path)
    kind, value = details[0]["type"], details[0]["input"]
    if kind == "extra_forbidden":
        return _unknown_name(path)
    if kind == "literal_error":
        allowed = [part.strip("'") for part in _literal_options(details[0])]
        return (
            f"{name} = {value!r}: allowed are {', '.join(map(repr, allowed))}."
            f"{_nearest_only(value, allowed)}"
        )
    if kind == "missing":
        return f"{name}: is required"
    if kind == "model_type":
        first = next(iter(_fields_at(path)), "field")
        return f"{name} = {value!r}: is a section; set its fields, such as {name}.{first}"
    return f"{name} = {value!r}: should be {' or '.join(map(_wanted, details))}"


def _unknown_name(path: Sequence[int | str]) -> str:
    """A field or section that is not there, with the nearest, or the section it belongs to."""
    wrong, name = str(path[-1]), ".".join(str(part) for part in path)
    if len(path) > 1:
        return f"{name}: no such field.{did_you_mean(wrong, _fields_at(path[:-1]))}"
    homes = sorted(field for field in settable_names() if field.rpartition(".")[2] == wrong)
    if homes:
        return f"{name}: no such section. Did you mean {' or '.join(map(repr, homes))}?"
    return f"{name}: no such section or field.{did_you_mean(wrong, RunConfig.model_fields)}"


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text in quotes",
    "dict": "a table, such as { key = 1 }",
}


def _wanted(detail: ErrorDetails) -> str:
    """What a value should be: pydantic's word, or a plainer one."""
    kind, value = detail["type"], detail["input"]
    if kind == "list_type":
        example = f", such as [{value!r}]" if isinstance(value, str) else ""
        return f"a list{example}"
    stem, _, problem = kind.partition("_")
    if stem in _KINDS and problem in ("type", "parsing", "from_float"):
        return _KINDS[stem]
    return detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")


def _is_union_branch(part: int | str) -> bool:
    # pydantic names the branch of a union that it tried, such as "list[str]".
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool"))


def _literal_options(detail: ErrorDetails) -> list[str]:
    expected = str(detail.get("ctx", {}).get("expected", ""))
    return [part.strip() for part in expected.replace(" or ", ", ").split(",") if part.strip()]


def _nearest_only(value: Any, allowed: Sequence[str]) -> str:
    hint = did_you_mean(str(value), allowed)
    return hint if "Did you mean" in hint else ""


def _fields_at(path: Sequence[int | str]) -> list[str]:
    section: Any = RunConfig
    for part in path:
        field = section.model_fields.get(part) if hasattr(section, "model_fields") else None
        if field is None:
            continue  # an index into a list
        section = field.annotation
        for argument in get_args(section):
            if isinstance(argument, type) and issubclass(argument, BaseModel):
                section = argument
    return list(section.model_fields) if hasattr(section, "model_fields") else []


def _listed(problems: Sequence[str], where: str | None) -> str:
    place = f" in {where}" if where else ""
    if len(problems) == 1:
        return f"{problems[0]}{f' ({where})' if where else ''}"
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return f"{len(problems)} problems{place}:\n{lines}"
