"""Runs checks one after another, each in a process of its own, within one budget of time.

A check that crashes, hangs or takes the driver down with it costs its own line: its process and
all that it started are ended at its deadline.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from roost.doctor.ask import Question, ask
from roost.doctor.facts import Answer
from roost.gpu_check.registry import Check
from roost.gpu_check.results import Place, Result, Verdict

LEAST_S = 5.0
"""With less time than this no check is begun."""
Ask = Callable[[Question], Answer]


def run_checks(
    checks: Sequence[Check],
    place: Place,
    budget_s: float,
    *,
    ask: Ask = ask,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Result]:
    """Yield each check's result as it comes.

    Args:
        checks: In this order.
        place: Where they run.
        budget_s: Seconds for all. A check that no time is left for has failed: nobody has seen
            that it is right.
        ask: Runs a process within its deadline.
        clock: Seconds that only rise.
    """
    end = clock() + budget_s
    for check in checks:
        start = clock()
        left = end - start
        if left < LEAST_S:
            detail = f"not begun: the {budget_s:g} s for all checks are used up (--budget)"
            yield Result(check.name, Verdict.FAILED, detail, 0.0)
            continue
        answer = ask(_question(check, place, min(check.deadline_s, left)))
        yield _result(check, answer, clock() - start)


def _question(check: Check, place: Place, deadline_s: float) -> Question:
    command = [sys.executable, "-m", "roost.gpu_check.child", check.name]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # What a pilot has measured on this machine would change the plans that are checked.
        "ROOST_HOME": place.folder,
    }
    if place.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return Question(check.name, [*command, json.dumps(place.as_dict())], deadline_s, environment)


def _result(check: Check, answer: Answer, seconds: float) -> Result:
    said = answer.last()
    if answer.problem:
        return Result(check.name, Verdict.FAILED, f"its process {answer.problem}", seconds)
    if "verdict" not in said:
        return Result(check.name, Verdict.FAILED, "its process ended without a verdict", seconds)
    figures = said.get("figures", {})
    return Result(check.name, Verdict(said["verdict"]), said["detail"], seconds, figures)
