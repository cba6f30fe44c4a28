"""What a check says: how bad it is, what it means, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """Works, but slower, tighter or less surely than it could."""
    FAULT = "fault"
    """Something that a run needs is broken; the exit code says so too."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    """The check's name, as docs/doctor.md lists it."""
    level: Level
    what: str
    """What was found, in one line."""
    means: str = ""
    """What it does to a run. Empty when all is well."""
    do: str = ""
    """What to do about it. Empty when nothing need be done."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The figures behind it, for programs."""

    def __post_init__(self) -> None:
        if self.level is not Level.OK and not (self.means and self.do):
            raise ValueError(f"{self.check}: a {self.level} must say what it means and what to do")


class Report:
    """The findings of all checks."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings

    def count(self, level: Level) -> int:
        """How many findings are of a level."""
        return sum(finding.level is level for finding in self.findings)

    @property
    def healthy(self) -> bool:
        """No faults; warnings are allowed."""
        return self.count(Level.FAULT) == 0

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "healthy": self.healthy,
            "faults": self.count(Level.FAULT),
            "warnings": self.count(Level.WARNING),
            "findings": [
                {
                    "check": finding.check,
                    "level": finding.level.value,
                    "what": finding.what,
                    "means": finding.means,
                    "do": finding.do,
                    "data": dict(finding.data),
                }
                for finding in self.findings
            ],
        }
