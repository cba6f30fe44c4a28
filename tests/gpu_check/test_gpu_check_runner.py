"""Checks run each in a process of its own; one that is lost costs its own line alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module

import pytest

from roost.doctor.ask import Question
from roost.doctor.facts import MARK, Answer
from roost.errors import ConfigError
from roost.gpu_check.__main__ import main
from roost.gpu_check.registry import CHECKS, Check, choose
from roost.gpu_check.results import Place, Result, Verdict
from roost.gpu_check.runner import run_checks

PLACE = Place("cuda", False, "/tmp/somewhere")
CHECK = Check("laws", "all is well", "module:function", 30.0)


def said(**fields: object) -> Answer:
    return Answer("laws", text=f"Loading: 100%\n{MARK}{json.dumps(fields)}\n")


def results(answers: Sequence[Answer], budget: float = 100.0, taking: float = 1.0) -> list[Result]:
    """Of as many checks as answers, each of which takes so many seconds of a clock of our own."""
    now, left = [0.0], list(answers)

    def ask(question: Question) -> Answer:
        now[0] += taking
        return left.pop(0)

    checks = [CHECK] * len(answers)
    return list(run_checks(checks, PLACE, budget, ask=ask, clock=lambda: now[0]))


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_a_check_says_is_its_result(verdict: Verdict) -> None:
    (result,) = results([said(verdict=verdict, detail="so it is", figures={"off": 0.5})])
    assert result == Result("laws", verdict, "so it is", 1.0, {"off": 0.5})


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (Answer("laws", problem="was ended by signal 11"), "its process was ended by signal 11"),
        (
            Answer("laws", problem="did not answer within 30 s and was killed", late=True),
            "its process did not answer within 30 s and was killed",
        ),
        (Answer("laws", text="nothing of use"), "its process ended without a verdict"),
        # What it said before it died counts for nothing.
        (
            Answer(
                "laws", text=said(verdict="ok", detail="").text, problem="ended with exit code 1"
            ),
            "its process ended with exit code 1",
        ),
    ],
)
def test_a_lost_check_fails_and_the_next_one_runs(answer: Answer, detail: str) -> None:
    lost, good = results([answer, said(verdict="ok", detail="fine")])
    assert (lost.verdict, lost.detail) == (Verdict.FAILED, detail)
    assert good.verdict is Verdict.OK


def test_a_check_has_no_more_time_than_is_left() -> None:
    deadlines = []
    now = [0.0]

    def ask(question: Question) -> Answer:
        deadlines.append(question.deadline_s)
        now[0] += 20.0
        return said(verdict="ok", detail="")

    found = list(run_checks([CHECK] * 4, PLACE, 45.0, ask=ask, clock=lambda: now[0]))

    assert deadlines == [30.0, 25.0, 5.0]
    assert [r.verdict for r in found] == [Verdict.OK] * 3 + [Verdict.FAILED]
    assert "the 45 s for all checks are used up" in found[-1].detail


def test_the_process_knows_its_place() -> None:
    asked: list[Question] = []

    def ask(question: Question) -> Answer:
        asked.append(question)
        return said(verdict="ok", detail="")

    for device in ("cpu", "cuda"):
        list(run_checks([CHECK], Place(device, True, "/tmp/x"), 60.0, ask=ask))

    cpu, cuda = asked
    assert json.loads(cpu.command[-1]) == {"device": "cpu", "small": True, "folder": "/tmp/x"}
    assert cpu.env is not None
    assert cuda.env is not None
    assert cpu.env["CUDA_VISIBLE_DEVICES"] == "", "a GPU that is there must not be taken"
    assert "CUDA_VISIBLE_DEVICES" not in cuda.env
    assert cpu.env["ROOST_HOME"] == "/tmp/x"


def test_every_check_is_there() -> None:
    for check in CHECKS.values():
        module, _, function = check.runner.partition(":")
        assert callable(getattr(import_module(module), function)), check.name


def test_checks_are_chosen_by_name() -> None:
    assert [check.name for check in choose(["split", "idle", "split"], small=True)] == [
        "split", "idle",
    ]  # fmt: skip
    small = {check.name for check in choose([], small=True)}
    assert small < set(CHECKS) == {check.name for check in choose([], small=False)}
    with pytest.raises(ConfigError, match="Did you mean 'packing'"):
        choose(["paking"], small=False)


def test_an_unknown_check_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert capsys.readouterr().err.startswith("error: no check 'nonsense'")


def test_the_checks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS)


@pytest.mark.slow
def test_a_real_check_in_a_real_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["split", "--device", "cpu", "--small", "--json"]) == 0
    output, progress = capsys.readouterr()
    found = json.loads(output)
    assert found["ok"] is True
    (check,) = found["checks"]
    assert (check["name"], check["verdict"]) == ("split", "ok")
    assert check["seconds"] > 0
    assert set(check["figures"]) == {"1", "40", "150", "400"}
    assert progress.startswith("ok       split")


@pytest.mark.slow
@pytest.mark.skipif(
    __import__("torch").cuda.is_available(), reason="shows what a machine without a GPU says"
)
def test_without_a_gpu_each_check_says_so_and_the_exit_code_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["base"]) == 1
    table = " ".join(capsys.readouterr().out.split())
    assert "finds no GPU here" in table
    assert "check verdict seconds detail base failed" in table
