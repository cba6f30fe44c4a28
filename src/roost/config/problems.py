"""What is wrong with a recipe, in plain words, from what pydantic reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from roost.config.description import settable_names
from roost.config.schema import RunConfig
from roost.errors import did_you_mean


def explain_all(details: Sequence[ErrorDetails]) -> list[str]:
    """Each problem once, in one sentence: pydantic reports one for each branch of a union."""
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


def listed(problems: Sequence[str], where: str | None) -> str:
    """All problems as one message, which says where they are."""
    place = f" in {where}" if where else ""
    if len(problems) == 1:
        return f"{problems[0]}{f' ({where})' if where else ''}"
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return f"{len(problems)} problems{place}:\n{lines}"
