"""What a person sees while a run goes on."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, TextIO, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")

MANY_DROPPED = 0.05
"""Share of a step's tokens that its correction may drop unmentioned."""


class Display(Protocol):
    """Told what the run does; shows it or not."""

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def warn(self, text: str) -> None:
        """A line that stays and deserves a look."""
        ...

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """A stretch of ``total`` steps or samples begins."""
        ...

    def advance(self, detail: str = "") -> None:
        """One more is done."""
        ...

    def waiting_for(self, what: str) -> None:
        """What the run is doing right now."""
        ...

    def end(self) -> None:
        """The stretch is over."""
        ...


class QuietDisplay:
    """Shows nothing; keeps what was said for whoever asks."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)

    def warn(self, text: str) -> None:
        """Keep a warning."""
        self.lines.append(f"warning: {text}")

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Nothing to show."""

    def advance(self, detail: str = "") -> None:
        """Nothing to show."""

    def waiting_for(self, what: str) -> None:
        """Nothing to show."""

    def end(self) -> None:
        """Nothing to show."""


class WarningDisplay(QuietDisplay):
    """Shows warnings alone, on standard error: for programs, which read standard output."""

    def warn(self, text: str) -> None:
        """Print a warning as it is."""
        super().warn(text)
        stream: Any = _UntilClosed(sys.stderr)
        print(self.lines[-1], file=stream, flush=True)


class _UntilClosed:
    """A stream whose reader may leave (``head``, a closed terminal): then nobody sees the rest.

    A run does not end because nobody looks on.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TerminalDisplay:
    """Lines and a progress bar on standard error; on a plain pipe, a line now and then."""

    def __init__(self, console: Console | None = None) -> None:
        stream: Any = _UntilClosed(sys.stderr)
        self.console = console or Console(file=stream, highlight=False)
        self._progress: Progress | None = None
        self._plain_done = 0
        self._plain_total = 0
        self._what = ""

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._print(Text(text))

    def warn(self, text: str) -> None:
        """Print a line in yellow."""
        self._print(Text(text, style="yellow"))

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Start a bar."""
        self.end()
        self._what, self._plain_total, self._plain_done = what, total, done
        if not self.console.is_terminal:
            return
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            TextColumn("{task.fields[waiting]}", markup=False, style="dim"),
            console=self.console,
            transient=True,
        )
        self._progress.add_task(what, total=total, completed=done, detail="", waiting="")
        self._progress.start()

    def advance(self, detail: str = "") -> None:
        """Move the bar, or print every tenth on a pipe."""
        self._plain_done += 1
        if self._progress is not None:
            task = self._progress.tasks[0]
            self._progress.update(task.id, advance=1, detail=detail)
        elif detail and self._is_tenth():
            done, total = self._plain_done, self._plain_total
            self._print(Text(f"{self._what} {done}/{total}  {detail}"))

    def waiting_for(self, what: str) -> None:
        """Name what is going on beside the bar."""
        if self._progress is not None:
            self._progress.update(self._progress.tasks[0].id, waiting=what)

    def end(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __enter__(self) -> TerminalDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _print(self, line: Text) -> None:
        # Texts of prompts and models: neither markup nor emoji codes, and no breaks of our own.
        self.console.print(line, soft_wrap=True)

    def _is_tenth(self) -> bool:
        every = max(1, self._plain_total // 10)
        return self._plain_done % every == 0 or self._plain_done == self._plain_total


def track(display: Display, what: str, items: Sequence[T]) -> Iterator[T]:
    """The items, one by one, beside a bar."""
    display.begin(what, len(items))
    try:
        for item in items:
            yield item
            display.advance()
    finally:
        display.end()


def figure(reward: float | None) -> str:
    """A mean reward; ``none`` where nothing was scored.

    >>> figure(0.5)
    '0.500'
    """
    return "none" if reward is None or math.isnan(reward) else f"{reward:.3f}"


def step_line(metrics: Mapping[str, float]) -> str:
    """A step in one line.

    >>> step_line({"reward": 0.5, "completions/mean_length": 12.0, "step_time": 1.25})
    'reward 0.500  length 12.0  1.2 s/step'
    """
    dropped = metrics.get("correction/dropped_ratio", 0.0)
    alarm = f"  {dropped:.0%} of tokens dropped" if dropped > MANY_DROPPED else ""
    return (
        f"reward {metrics['reward']:.3f}  "
        f"length {metrics['completions/mean_length']:.1f}  "
        f"{metrics['step_time']:.1f} s/step{alarm}"
    )
