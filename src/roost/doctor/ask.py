"""Asking other processes, each with a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from roost.doctor.facts import Answer

REAP_S = 5.0
"""A killed process that waits for hardware cannot die; it is left behind after so long."""


@dataclass(frozen=True, slots=True)
class Question:
    """A process to run."""

    who: str
    command: Sequence[str]
    deadline_s: float
    env: Mapping[str, str] | None = None
    """Variables beside those of this process."""


def ask(question: Question) -> Answer:
    """Run one process."""
    return ask_together([question])[0]


def ask_together(questions: Sequence[Question]) -> list[Answer]:
    """Run processes at the same time, each within its deadline; one answer each."""
    begin = time.monotonic()
    started: list[_Running | Answer] = []
    try:
        started.extend(_start(question) for question in questions)
        return [
            one if isinstance(one, Answer) else one.finish(begin + one.question.deadline_s)
            for one in started
        ]
    finally:
        # After Ctrl-C: they are in sessions of their own, so the terminal does not reach them.
        for one in started:
            if isinstance(one, _Running):
                one.end()


@dataclass(slots=True)
class _Running:
    question: Question
    process: subprocess.Popen[bytes]
    # Files, not pipes: a grandchild that outlives its parent would hold a pipe open for ever.
    out: IO[bytes]
    err: IO[bytes]
    ended: bool = False

    def finish(self, until: float) -> Answer:
        """Wait until the deadline, a time of the monotonic clock, and take what was said."""
        late = False
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
        ended = self.end()
        text, errors = _read(self.out), _read(self.err)
        problem = self._late(ended) if late else self._failed(errors or text)
        return Answer(self.question.who, text, problem, late=late)

    def end(self) -> bool:
        """Kill what is left of the process and its children; False when it would not die."""
        if self.ended:
            return True
        # That there is no such group is the usual case: all have ended by themselves.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            return False
        self.ended = True
        return True

    def _late(self, ended: bool) -> str:
        after = "was killed" if ended else "cannot be killed: it waits inside the driver"
        return f"did not answer within {self.question.deadline_s:g} s and {after}"

    def _failed(self, output: str) -> str:
        code = self.process.returncode
        if code == 0:
            return ""
        how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        lines = output.strip().splitlines()
        return f"{how}: {lines[-1].strip()}" if lines else how


def _start(question: Question) -> _Running | Answer:
    with contextlib.ExitStack() as files:
        out = files.enter_context(tempfile.TemporaryFile())
        err = files.enter_context(tempfile.TemporaryFile())
        try:
            process = subprocess.Popen(
                list(question.command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **(question.env or {})},
                start_new_session=True,
            )
        except FileNotFoundError:
            return Answer(question.who, problem="is not installed", missing=True)
        except PermissionError:
            return Answer(question.who, problem="may not be run by this user")
        files.pop_all()
        return _Running(question, process, out, err)


def _read(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")
