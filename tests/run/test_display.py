"""What a person sees, on a terminal and on a pipe."""

from __future__ import annotations

import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from roost.run.display import (
    Display,
    QuietDisplay,
    TerminalDisplay,
    WarningDisplay,
    figure,
    step_line,
)

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_pipe() -> tuple[TerminalDisplay, io.StringIO]:
    stream = io.StringIO()
    return TerminalDisplay(Console(file=stream, highlight=False, width=80)), stream


def on_a_terminal() -> tuple[TerminalDisplay, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, highlight=False, width=160)
    return TerminalDisplay(console), stream


TEXTS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=200)


@given(TEXTS | st.sampled_from(["[bold]x", "[/]", ":smile:", "ends in \\", "[red]\\", "\\[x]"]))
def test_what_is_said_stands_there_letter_for_letter(text: str) -> None:
    """Prompts and completions are in it: no markup, no emoji codes, no breaking of lines."""
    display, stream = on_a_pipe()
    display.say(text)
    display.warn(text)
    assert stream.getvalue() == f"{text}\n{text}\n"


def test_a_warning_stands_out_on_a_terminal() -> None:
    display, stream = on_a_terminal()
    display.say("all is well")
    plain = stream.getvalue()
    display.warn("look here")
    assert "\x1b[33m" in stream.getvalue()
    assert "\x1b[33m" not in plain


def advanced(total: int, done: int = 0) -> list[str]:
    """The lines of a whole stretch on a pipe."""
    display, stream = on_a_pipe()
    display.begin("training", total, done)
    for step in range(done, total):
        display.advance(f"detail of {step + 1}")
    display.end()
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("total", "done", "shown"),
    [
        pytest.param(200, 0, list(range(20, 201, 20)), id="every-tenth"),
        pytest.param(25, 0, [*range(2, 25, 2), 25], id="the-last-always"),
        pytest.param(3, 0, [1, 2, 3], id="all-of-few"),
        pytest.param(200, 170, [180, 200], id="resumed"),
    ],
)
def test_a_line_now_and_then_on_a_pipe(total: int, done: int, shown: list[int]) -> None:
    expected = [f"training {step}/{total}  detail of {step}" for step in shown]
    assert advanced(total, done) == expected


def test_a_bar_on_a_terminal() -> None:
    display, stream = on_a_terminal()
    with display:
        display.begin("training", 8, 5)
        display.advance("reward [bold]0.5")
        display.waiting_for("sampling [x] 3/8")
        display.say("held out")
    seen = ESCAPES.sub("", stream.getvalue())
    assert "training" in seen
    assert "6/8" in seen
    assert "reward [bold]0.5" in seen
    assert "left" in seen
    assert "sampling [x] 3/8" in seen
    assert "held out\n" in seen


def test_the_bar_goes_when_the_stretch_ends() -> None:
    display, stream = on_a_terminal()
    display.begin("training", 2)
    display.end()
    before = stream.getvalue()
    display.end()
    display.waiting_for("nothing")
    display.advance()
    assert stream.getvalue() == before


def test_a_quiet_display_keeps_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    display = QuietDisplay()
    display.begin("training", 3)
    display.say("[a]")
    display.advance("b")
    display.warn("c")
    display.end()
    assert display.lines == ["[a]", "warning: c"]
    assert capsys.readouterr() == ("", "")


def test_a_program_is_told_of_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    display = WarningDisplay()
    display.say("a")
    display.warn("[b]")
    assert capsys.readouterr() == ("", "warning: [b]\n")
    assert display.lines == ["a", "warning: [b]"]


@pytest.mark.parametrize("kind", [QuietDisplay, TerminalDisplay, WarningDisplay])
def test_each_display_has_all_that_a_run_calls(kind: type) -> None:
    calls = [name for name in vars(Display) if not name.startswith("_")]
    assert len(calls) == 6
    assert all(callable(getattr(kind, name)) for name in calls)


def test_a_step_in_one_line() -> None:
    metrics = {"reward": 2 / 3, "completions/mean_length": 10.25, "step_time": 3.14}
    assert step_line(metrics) == "reward 0.667  length 10.2  3.1 s/step"
    few, many = ({**metrics, "correction/dropped_ratio": share} for share in (0.05, 0.07))
    assert step_line(few) == step_line(metrics)
    assert step_line(many) == f"{step_line(metrics)}  7% of tokens dropped"


@pytest.mark.parametrize(
    ("reward", "text"), [(0.12345, "0.123"), (None, "none"), (math.nan, "none")]
)
def test_a_reward_or_none(reward: float | None, text: str) -> None:
    assert figure(reward) == text
