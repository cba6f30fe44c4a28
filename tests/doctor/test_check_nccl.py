from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from roost.doctor.ask import Question, ask_together
from roost.doctor.checks import nccl
from roost.doctor.facts import Answer, Facts
from roost.doctor.findings import Level
from support.machines import hgx, laptop, levels, only, ranks, said, switch_pair

LATE = "did not answer within 120 s and was killed"


def reached(rank: int, stage: str, problem: str = LATE, *, late: bool = True) -> Answer:
    stages = ["started", "joined", "summed"]
    lines = [{"stage": one} for one in stages[: stages.index(stage) + 1]]
    return said(f"rank {rank} of the all-reduce", *lines, problem=problem, late=late)


@pytest.mark.parametrize("facts", [hgx(), switch_pair(), laptop()])
def test_a_right_sum_and_no_card_are_well(facts: Facts) -> None:
    assert only(nccl.check(facts)).level is Level.OK


def test_the_rate_is_that_of_the_slowest_rank() -> None:
    four = (*ranks(3, 120.0), *ranks(1, 90.0))
    found = only(nccl.check(replace(hgx(), all_reduce=four)))
    assert found.what == "an all-reduce over 4 cards gives the right sum, 90.0 GB/s a link"


def test_ranks_that_hang_are_named_with_where_they_were() -> None:
    both = (reached(0, "joined"), reached(1, "started"))
    found = only(nccl.check(replace(switch_pair(), all_reduce=both)))
    assert found.level is Level.FAULT
    assert found.what == (
        "2 of 2 ranks did not answer: rank 0 of the all-reduce (in the first sum), "
        "rank 1 of the all-reduce (while joining the others)"
    )


def test_a_rank_that_fails_is_the_cause_of_those_that_wait() -> None:
    error = (
        "ended with exit code 1: Error while creating shared memory segment "
        "/dev/shm/nccl-xYz (size 9637888)"
    )
    both = (reached(0, "joined"), reached(1, "joined", error, late=False))
    found = only(nccl.check(replace(switch_pair(), all_reduce=both)))
    assert found.level is Level.FAULT
    assert found.what.startswith("rank 1 of the all-reduce ended with exit code 1")
    assert "shared-memory" in found.do


def test_a_wrong_sum_is_a_fault() -> None:
    wrong = said("rank 1 of the all-reduce", {"stage": "done", "right": False, "gbps": 20.0})
    both = (ranks(1, 20.0)[0], wrong)
    found = only(nccl.check(replace(switch_pair(), all_reduce=both)))
    assert found.level is Level.FAULT
    assert "wrong sum on rank 1" in found.what


def test_a_left_over_work_around_is_a_warning() -> None:
    found = nccl.check(replace(switch_pair(), env={"NCCL_P2P_DISABLE": "1"}))
    assert levels(found) == [Level.OK, Level.WARNING]
    assert found[1].what == "NCCL_P2P_DISABLE=1 is set"


def all_reduce(meeting: Path, rank: int, world: int, deadline_s: float = 120.0) -> Question:
    command = [sys.executable, "-m", "roost.doctor.probes.all_reduce", "gloo"]
    return Question(
        f"rank {rank} of the all-reduce",
        [*command, str(rank), str(world), str(meeting), "1"],
        deadline_s,
        {"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )


def test_the_all_reduce_itself_adds_up(tmp_path: Path) -> None:
    """With gloo, as there may be no GPU: the same ranks, stages and sum."""
    meeting = tmp_path / "meeting"
    answers = ask_together([all_reduce(meeting, rank, 2) for rank in range(2)])
    assert [answer.problem for answer in answers] == ["", ""]
    assert [line["stage"] for line in answers[1].said()] == ["started", "joined", "summed", "done"]
    found = only(nccl.check(Facts(all_reduce=tuple(answers))))
    assert found.level is Level.OK
    assert found.data["gbps"] > 0


@pytest.mark.slow
def test_a_rank_whose_partner_never_comes_is_named_at_the_deadline(tmp_path: Path) -> None:
    answers = ask_together([all_reduce(tmp_path / "meeting", 0, 2, deadline_s=20.0)])
    found = only(nccl.check(Facts(all_reduce=tuple(answers))))
    assert found.level is Level.FAULT
    assert "rank 0 of the all-reduce (while joining the others)" in found.what
