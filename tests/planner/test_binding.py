"""What limits a run, of phases and seconds made up for each case."""

from __future__ import annotations

from typing import Any

import pytest

from roost.planner.binding import binding
from roost.planner.decode import DecodeStep
from roost.planner.engine_memory import EngineMemory
from roost.planner.request import Engine, Hardware, Layout, Workload
from roost.planner.terms import Phase, Term
from roost.planner.timing import Seconds
from support.toy_plans import card, request

CARD = 10 * 2**30
LAYOUT = Layout("colocate", 1, "ddp", 1, 1, 1, 0.5, 1)
PARTS = ("weights", "arithmetic", "cache", "launches", "allreduce", "sequences")
PHASES = ("generate", "logprob", "train", "sync", "sleep_wake")


def limit(
    *, held: int = CARD, resident: int = 6, passes: int = 1, seqs: int | None = None, **slow: float
) -> str:
    """Every phase and every part of a decode step takes a second, but for those named."""
    step = DecodeStep(**{part: slow.get(part, 1.0) for part in PARTS})
    times: dict[str, Any] = {name: slow.get(name, 1.0) for name in PHASES}
    return binding(
        request(Hardware(card()), Workload(2, 3, 32, 64), engine=Engine(max_num_seqs=seqs)),
        LAYOUT,
        (Phase("generate", ()), Phase("train", (Term("states", held, ""),))),
        EngineMemory(0, 0, 0, resident, 0, ()),
        Seconds(decode=step, passes=passes, concurrent=1, **times),
    )


def test_memory_that_is_not_there_comes_first() -> None:
    assert limit(held=CARD + 1, resident=0, sync=9.0) == "memory: train phase"
    assert limit(resident=0, sync=9.0) == "memory: key-value cache"
    assert not limit(held=CARD, resident=1).startswith("memory")


@pytest.mark.parametrize(
    ("phase", "name"),
    [("train", "train"), ("sync", "sync"), ("sleep_wake", "sleep and wake"),
     ("logprob", "log-probabilities")],
)  # fmt: skip
def test_else_it_is_the_slowest_phase(phase: str, name: str) -> None:
    assert limit(**{phase: 1.1}) == name


@pytest.mark.parametrize(
    ("slow", "bound"),
    [({"weights": 9.0}, "memory bandwidth"), ({"cache": 9.0}, "memory bandwidth"),
     ({"arithmetic": 9.0}, "arithmetic"), ({"launches": 9.0}, "launches and sampler"),
     ({"sequences": 9.0}, "launches and sampler"), ({"allreduce": 9.0}, "link")],
)  # fmt: skip
def test_decoding_says_what_it_waits_for(slow: dict[str, float], bound: str) -> None:
    assert limit(generate=1.1, **slow) == f"generate: {bound}"


def test_decoding_in_several_passes_is_short_of_room_or_of_sequences() -> None:
    assert limit(generate=1.1, passes=2, resident=4) == "generate: key-value cache"
    assert limit(generate=1.1, passes=2, resident=4, seqs=3) == "generate: max_num_seqs"
    assert limit(generate=1.1, passes=2, resident=4, seqs=4) == "generate: key-value cache"
