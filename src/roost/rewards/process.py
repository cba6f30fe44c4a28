"""One worker process and the pipe to it. Every exchange has a deadline, at which it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from types import TracebackType
from typing import IO, Any, Self

START_DEADLINE_S = 120.0
"""A worker that has not loaded its rewards by then is given up."""
KEEPER_DEADLINE_S = 5.0
"""A keeper that has not ended its worker by then is killed with its process group."""

Outcomes = list[tuple[float | None, str | None, str]]
"""Of each reward its value, or None with the kind of failure and its message."""


class WorkerLost(Exception):
    """The process is gone, or was killed at its deadline.

    Args:
        kind: ``died`` or ``deadline``.
        message: What happened, for a person.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class WorkerProcess:
    """A process that loads rewards and then scores one task at a time. One thread owns it; any
    may ``kill`` it."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``end``
        try:
            self.process = _launch(theirs.fileno(), self._log)
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()

    def start(self, setup: bytes) -> None:
        """Send the rewards and wait until they are loaded.

        Raises:
            WorkerLost: they were not.
        """
        if self._exchange(setup, START_DEADLINE_S) != "ready":
            raise WorkerLost("died", "it did not say that it was ready")

    def ask(self, task: bytes, deadline_s: float) -> Outcomes:
        """Have a task scored.

        Raises:
            WorkerLost: there is no answer.
        """
        answer: Outcomes = self._exchange(task, deadline_s)
        return answer

    def _exchange(self, message: bytes, deadline_s: float) -> Any:
        # Sending may wait as well, where a worker that does not read leaves no room in the pipe,
        # and so may receiving, where only a part of the answer came. The alarm ends all of them.
        with _Alarm(self.kill, deadline_s) as alarm:
            try:
                self._pipe.send_bytes(message)
                answer = self._pipe.recv()
            except (EOFError, OSError) as error:
                code = self.process.wait()  # until the alarm, where it closed the pipe and lives on
                if not alarm.off():
                    raise WorkerLost("died", f"its worker died with exit code {code}") from error
            else:
                if not alarm.off():
                    return answer
        raise WorkerLost("deadline", f"no answer within {deadline_s:g} s; its worker was killed")

    def log_tail(self) -> str:
        """The last line that the worker printed: of a traceback, the error."""
        self._log.seek(0)
        lines = bytes(self._log.read()).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def kill(self) -> None:
        """Kill the worker and all that rewards have started from it."""
        self.process.terminate()  # the keeper, which ends all others first
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KEEPER_DEADLINE_S)
        # The group keeps its number while any member lives, even where the keeper itself is gone.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and close what belongs to it."""
        self.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._close()

    def _close(self) -> None:
        self._pipe.close()
        self._log.close()


def _launch(pipe: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "roost.rewards.worker", str(pipe)],
        pass_fds=[pipe],
        stdin=subprocess.PIPE,  # never written: its end tells the keeper that the run is gone
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        # A process group of its own, to be killed where the keeper does not answer.
        start_new_session=True,
    )


class _Alarm:
    """Calls ``kill`` after so many seconds, unless it is put off before."""

    def __init__(self, kill: Callable[[], None], seconds: float) -> None:
        self._kill = kill
        self._lock = threading.Lock()
        self._is_off = self._rang = False
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.daemon = True

    def off(self) -> bool:
        """Whether it rang; if not, it will not any more."""
        with self._lock:
            self._is_off = True
            return self._rang

    def _ring(self) -> None:
        with self._lock:
            if not self._is_off:
                self._rang = True
                self._kill()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
