"""The child's end of a race: it says that it is ready, waits for ``go``, and reports each turn.

Every message is one line of JSON on the process's first standard output. Libraries that print do
not disturb it: after ``Channel.open`` whatever they write goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from roost.bench.turns import Turn

GO = "go"


class Channel:
    """Owns both pipes to the parent.

    Args:
        orders: Where ``go`` comes from.
        reports: Where messages go.
    """

    def __init__(self, orders: TextIO, reports: TextIO) -> None:
        self._orders = orders
        self._reports = reports

    @classmethod
    def open(cls) -> Channel:
        """Take standard output for messages alone. To be called before anything can print."""
        reports = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        return cls(sys.stdin, reports)

    def ready(self, settings: Mapping[str, Any]) -> None:
        """All is loaded; these are the settings that it will run with."""
        self._send({"ready": dict(settings)})

    def await_go(self) -> bool:
        """Wait for the parent; False when it wants no more."""
        return self._orders.readline().strip() == GO

    def goes(self) -> Iterator[None]:
        """One item for each turn that the parent wants."""
        while self.await_go():
            yield

    def report(self, turn: Turn) -> None:
        """What a turn measured."""
        self._send({"turn": turn.as_dict()})

    def fail(self, reason: str) -> None:
        """Why this process cannot go on."""
        self._send({"error": reason})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._reports.write(json.dumps(message) + "\n")
        self._reports.flush()
