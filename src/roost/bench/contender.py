"""The parent's end of a race: a process that takes turns when told to, each with a deadline."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from roost.bench.channel import GO
from roost.bench.turns import Turn

CLOSE_DEADLINE_S = 10.0
"""Seconds between asking a process to end and ending it."""
STOP_DEADLINE_S = 60.0
"""Seconds in which a process must have stopped, in as many attempts as it takes."""
_STOP_PATIENCE_S = 0.5
"""Seconds that one attempt at stopping waits."""
_SHOWN = 300
"""Most characters of a process's own words in a message."""


class ContenderLost(Exception):
    """A contender died, overran its deadline or reported nonsense; the message says which."""


class Contender:
    """A process that is measured. Owns the process, its pipes and its log.

    Invariant: the process works only between ``go`` and its report, so no two contenders ever work
    at the same time. In between it is stopped by signal, with all that it started: libraries whose
    idle threads spin would otherwise take the cores from whoever's turn it is. Every wait has a
    deadline; who does not answer is killed, likewise with all that it started.

    Args:
        name: For messages and tables.
        command: Started at once.
        log: Receives its standard error.
        environment: Its environment.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                # A group of its own, to be stopped and killed as one, and in our session: should
                # we be killed, the system ends a group that is left behind stopped (setpgid(2)).
                process_group=0,
            )
        self._received = b""
        self._closed = False

    def wait_ready(self, deadline_s: float) -> dict[str, Any]:
        """Wait until all is loaded; returns its settings.

        Raises:
            ContenderLost: it will not run.
        """
        message = self._receive(deadline_s, "to load")
        settings = message.get("ready")
        if not isinstance(settings, dict):
            raise self._nonsense(json.dumps(message), "no settings")
        self._stop()
        return settings

    def turn(self, deadline_s: float) -> Turn:
        """Let it do one step, and wait for it.

        Raises:
            ContenderLost: there is no report.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # It is gone: reading says why.
            self._process.stdin.write(f"{GO}\n".encode())
            self._process.stdin.flush()
        message = self._receive(deadline_s, "for a step")
        try:
            turn = Turn.parse(message.get("turn"))
        except ValueError as error:
            raise self._nonsense(json.dumps(message), str(error)) from None
        self._stop()
        return turn

    def close(self) -> None:
        """Ask the process to end, and end it. Once is enough; again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._signal(signal.SIGCONT)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # It died with an order unread.
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_DEADLINE_S)
        self._kill()  # What did not end, and what it left behind.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _receive(self, deadline_s: float, what: str) -> dict[str, Any]:
        line = self._read_line(deadline_s, what)
        try:
            message = json.loads(line)
        except ValueError:
            raise self._nonsense(line.decode(errors="replace"), "it is not JSON") from None
        if not isinstance(message, dict):
            raise self._nonsense(line.decode(), "it is not a table")
        if "error" in message:
            words = " ".join(str(message["error"]).split())  # one line, whatever was raised
            raise ContenderLost(f"failed: {words[:_SHOWN]}")
        return message

    def _read_line(self, deadline_s: float, what: str) -> bytes:
        assert self._process.stdout is not None
        end = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(0.0, end - time.monotonic())):
                    self._kill()
                    raise ContenderLost(
                        f"did not answer: took more than {deadline_s:g} s {what} (--deadline)"
                    )
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    raise ContenderLost(self._epitaph())
                self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _nonsense(self, said: str, why: str) -> ContenderLost:
        self._kill()
        return ContenderLost(f"reported what is not a measurement ({why}): {said[:_SHOWN]!r}")

    def _epitaph(self) -> str:
        """How the process ended, and the last that it said."""
        try:
            code = self._process.wait(CLOSE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return "closed its output and went on"
        how = f"was killed by signal {-code}" if code < 0 else f"died with exit code {code}"
        if code == -signal.SIGKILL:
            how += " (out of memory?)"
        words = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
        return f"{how}; its last words: {words[:_SHOWN]!r}" if words else how

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _stop(self) -> None:
        """Stop the process, and wait until it is.

        A thread that starts a program shares its memory with the child until that runs
        (vfork(2)), and does not stop before: a child stopped in between would hold its parent up
        for good. So a group that does not stop soon goes on for a moment, and is stopped again.
        """
        self._signal(signal.SIGSTOP)
        if not hasattr(os, "waitid"):  # Not on every system, and elsewhere it stops a little later.
            return
        end = time.monotonic() + STOP_DEADLINE_S
        while not self._has_stopped():
            if time.monotonic() > end:
                self._kill()
                raise ContenderLost(f"did not stop within {STOP_DEADLINE_S:g} s")
            self._signal(signal.SIGCONT)
            time.sleep(_STOP_PATIENCE_S / 10)
            self._signal(signal.SIGSTOP)

    def _has_stopped(self) -> bool:
        """Whether the process stops, or ends, within the patience for one attempt."""
        end = time.monotonic() + _STOP_PATIENCE_S
        states = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        while os.waitid(os.P_PID, self._process.pid, states) is None:
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started."""
        with suppress(ProcessLookupError):  # All of them have ended.
            os.killpg(self._process.pid, number)
