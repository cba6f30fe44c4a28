"""Ctrl-C, SIGTERM, a closed terminal: the first asks for a clean stop, a second ends at once."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any


class Interrupted(Exception):
    """Raised at the next safe place after a stop was asked for."""


class StopSwitch:
    """Remembers that a stop was asked for. Within ``with``, signals flip it.

    A checkpoint taken at the last step boundary loses nothing, so work in progress is dropped
    rather than waited for; only an optimizer update is always finished.

    Args:
        one_for_s: Seconds in which further signals are part of the first. A Ctrl-C reaches each
            process of ``torchrun`` twice, from the terminal and from ``torchrun``.
    """

    def __init__(self, one_for_s: float = 0.0) -> None:
        self._asked = False
        self._one_for_s = one_for_s
        self._first = 0.0
        self._before: dict[int, Any] = {}

    def ask(self) -> None:
        """Stop at the next safe place."""
        self._asked = True

    def check(self) -> None:
        """A safe place.

        Raises:
            Interrupted: a stop was asked for.
        """
        if self._asked:
            raise Interrupted

    def __enter__(self) -> StopSwitch:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # started by nohup, to outlive its terminal
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._asked:
            self._asked, self._first = True, time.monotonic()
        # A closed terminal hangs up twice, by the kernel and by its shell; nobody is impatient.
        elif number != signal.SIGHUP and time.monotonic() - self._first >= self._one_for_s:
            raise KeyboardInterrupt
