"""Contenders in turns: whatever disturbs the machine for a while disturbs all of them alike."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from roost.bench.contender import Contender, ContenderLost
from roost.bench.turns import Turn

WARM_UP = 1
"""First steps of each that are not counted."""
Say = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """What a contender showed."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    """Counted ones."""
    failure: str | None = None
    """Why it left the race; None where it finished."""


def race(
    starters: Sequence[tuple[str, Callable[[], Contender]]],
    rounds: int,
    deadline_s: float,
    say: Say,
) -> list[Outcome]:
    """Load all contenders one after another, warm each up, and let them take turns.

    One that fails costs its own row; the others go on.

    Args:
        starters: Names, and what starts each one's process.
        rounds: Counted steps of each.
        deadline_s: Seconds that loading, or a step, may take.
        say: Told what goes on.
    """
    outcomes = [Outcome(name) for name, _ in starters]
    running: dict[str, Contender] = {}
    with _tidy_end(), ExitStack() as stack:
        for outcome, (name, start) in zip(outcomes, starters, strict=True):
            say(f"{name}: loading")
            running[name] = stack.enter_context(start())
            with _leaving(outcome, running, say):
                outcome.settings = running[name].wait_ready(deadline_s)
        for number in range(WARM_UP + rounds):
            _round(number, outcomes, running, deadline_s, say)
    return outcomes


@contextmanager
def _tidy_end() -> Iterator[None]:
    """Within it SIGTERM ends the race as Ctrl-C does, so that no process is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python takes signals in the main thread alone.
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        # A second one, as timeout(1) sends, must not cut the tidying short.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _round(
    number: int,
    outcomes: Sequence[Outcome],
    running: dict[str, Contender],
    deadline_s: float,
    say: Say,
) -> None:
    label = "warm-up" if number < WARM_UP else f"step {number - WARM_UP + 1}"
    for outcome in outcomes:
        if outcome.name not in running:
            continue
        with _leaving(outcome, running, say):
            turn = running[outcome.name].turn(deadline_s)
            say(f"{outcome.name}: {label}, {turn.step_s:.2f} s, {turn.generated_tokens} tokens")
            if number >= WARM_UP:
                outcome.turns.append(turn)


@contextmanager
def _leaving(outcome: Outcome, running: dict[str, Contender], say: Say) -> Iterator[None]:
    """Who is lost within leaves the race."""
    try:
        yield
    except ContenderLost as error:
        outcome.failure = str(error)
        running.pop(outcome.name).close()
        say(f"{outcome.name}: {error}")
