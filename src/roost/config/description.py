"""Every field of a recipe with its type, default and meaning, read off the schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import tomli_w
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from roost.config.schema import RunConfig, Section


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
