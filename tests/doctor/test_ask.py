from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from roost.doctor.ask import Question, ask, ask_together
from roost.doctor.facts import MARK


def python(code: str, deadline_s: float = 30.0) -> Question:
    return Question("the child", [sys.executable, "-c", code], deadline_s)


def test_an_answer_is_what_the_process_printed() -> None:
    answer = ask(python("print('hello')"))
    assert (answer.text, answer.problem, answer.late) == ("hello\n", "", False)


def test_a_process_that_hangs_is_killed_at_its_deadline_and_what_it_said_is_kept() -> None:
    start = time.monotonic()
    answer = ask(python("import time; print('begun', flush=True); time.sleep(600)", 1.0))
    assert time.monotonic() - start < 10
    assert answer.late
    assert answer.text == "begun\n"
    assert answer.problem == "did not answer within 1 s and was killed"


def test_children_of_a_hanging_process_do_not_prolong_the_wait() -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600']).wait()"
    start = time.monotonic()
    assert ask(python(code, 1.0)).late
    assert time.monotonic() - start < 10


def test_a_failing_process_is_quoted() -> None:
    answer = ask(python("raise RuntimeError('no mood')"))
    assert answer.problem == "ended with exit code 1: RuntimeError: no mood"
    assert not answer.late


def test_a_process_that_dies_by_a_signal_says_which() -> None:
    assert ask(python("import os; os.kill(os.getpid(), 9)")).problem == "was ended by signal 9"


def test_a_program_that_is_not_there_is_missing() -> None:
    answer = ask(Question("nvidia-smi", ["no-such-program-here"], 1.0))
    assert answer.missing
    assert answer.problem == "is not installed"


def test_processes_asked_together_run_at_the_same_time() -> None:
    start = time.monotonic()
    answers = ask_together([python("import time; time.sleep(600)", 2.0) for _ in range(3)])
    assert all(answer.late for answer in answers)
    assert time.monotonic() - start < 5


def test_only_marked_lines_count_as_said() -> None:
    code = f"print('a library greets'); print({MARK!r} + '{{\"a\": 1}}'); print('and leaves')"
    answer = ask(python(code))
    assert answer.said() == [{"a": 1}]
    assert answer.last() == {"a": 1}


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_process_that_waits_inside_the_driver_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a process takes no signal; here the signal is kept from it."""
    kept: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("roost.doctor.ask.REAP_S", 0.1)
        patch.setattr(os, "killpg", lambda group, _: kept.append(group))
        answer = ask(python("import time; time.sleep(5)", 0.5))
    os.killpg(kept[0], signal.SIGKILL)
    os.waitpid(kept[0], 0)
    assert answer.late
    assert answer.problem.endswith("cannot be killed: it waits inside the driver")
