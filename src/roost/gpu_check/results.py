"""What a check is given, what it may say, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It could not be tried here; the reason is its detail."""


class CheckFailed(Exception):
    """What was found is not as it must be; the message says both."""


class NotHere(Exception):
    """What the check needs is not on this machine; the message says what would end that."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a check runs."""

    device: str
    """``cuda`` or ``cpu``."""
    small: bool
    """Smallest models and fewest steps: shows that a check works, not how fast the machine is."""
    folder: str
    """For what checks write, models among it; all checks share it."""

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)

    def as_dict(self) -> dict[str, Any]:
        """As JSON carries it to a check's process."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Found:
    """What a check that is content has seen."""

    detail: str
    """One line."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs."""


@dataclass(frozen=True, slots=True)
class Result:
    """A check's line in the table."""

    name: str
    verdict: Verdict
    detail: str
    seconds: float
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(self), "verdict": self.verdict.value}


def require(condition: bool, message: str) -> None:
    """Fail the check unless something holds.

    Raises:
        CheckFailed: it does not.
    """
    if not condition:
        raise CheckFailed(message)
