"""One thing that a person gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from support.desk import Desk

Arguments = Callable[[Desk], list[str]]
"""Makes the files of a mistake and gives the command line that meets it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table."""

    id: str
    arguments: Arguments
    says: tuple[str, ...]
    """What the error must name: the field, the value, what is allowed, what to do."""
    began: bool = False
    """The run had begun, so its folder stays."""


def case(id: str, arguments: Arguments, *says: str, began: bool = False) -> Case:
    """A row of the table, written short."""
    return Case(id, arguments, says, began)
