"""The state machine against an engine's memory: what it allows never touches what is not there."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.engines.vllm.state import LEVELS, STEPS, State, StateMachine
from roost.errors import EngineError


class Memory:
    """What a real engine holds, kept by hand; each step asserts what the hardware would need."""

    def __init__(self) -> None:
        self.weights = self.cache = True
        self.current = self.running = False

    @property
    def mapped(self) -> bool:
        return self.weights and self.cache

    @property
    def ready(self) -> bool:
        return self.mapped and self.current

    def do(self, step: str) -> None:
        getattr(self, step)()

    def outdate(self) -> None:
        assert self.mapped
        assert not self.running
        self.current = False

    def sync(self) -> None:
        assert self.weights, "weights written into memory that is not mapped"
        assert not self.running, "weights changed under a running request"
        self.current = True

    def generate(self) -> None:
        assert self.ready, "sampled with other weights"
        self.running = True

    def drain(self) -> None:
        assert self.running
        self.running = False

    def sleep(self) -> None:
        assert not self.running, "memory taken from a running request"
        assert self.mapped
        self.weights = self.cache = self.current = False

    def wake_weights(self) -> None:
        assert not self.mapped
        assert not self.weights
        self.weights = True

    def wake_cache(self) -> None:
        assert self.weights
        assert self.current, "a cache before its weights"
        assert not self.cache
        self.cache = True


@given(st.sampled_from(LEVELS), st.lists(st.sampled_from(STEPS), max_size=40))
def test_what_is_allowed_is_safe_and_what_is_not_is_named(level: int, steps: list[str]) -> None:
    machine, memory = StateMachine(level), Memory()
    for step in steps:
        before = machine.state
        try:
            machine.take(step)
        except EngineError as error:
            assert machine.state is before
            named = [state for state in State if f"'{state}'" in str(error)]
            assert before in named
            assert len(named) >= 2, "both states are named"
        else:
            memory.do(step)
    assert (machine.state is State.GENERATING) == memory.running
    if machine.state is State.READY:
        assert memory.ready


@pytest.mark.parametrize("level", LEVELS)
def test_from_everywhere_it_can_sample_again(level: int) -> None:
    seen: dict[State, int] = {}
    queue = deque([[]])  # type: ignore[var-annotated]
    while queue:
        path = queue.popleft()
        machine = StateMachine(level)
        for step in path:
            machine.take(step)
        if machine.state in seen:
            continue
        seen[machine.state] = len(path)
        for step in STEPS:
            try:
                machine.check(step)
            except EngineError:
                continue
            queue.append([*path, step])
    everything = set(State)
    asleep = {State.ASLEEP, State.WEIGHTS_AWAKE, State.WEIGHTS_SYNCED}
    assert set(seen) == (everything if level else everything - asleep)


def test_waking_is_weights_then_sync_then_cache() -> None:
    machine = StateMachine(1)
    for step in ("sync", "sleep", "wake_weights"):
        machine.take(step)
    with pytest.raises(EngineError, match="'half awake, its weights not yet synced' to 'ready"):
        machine.take("wake_cache")
    with pytest.raises(EngineError, match=r"to 'sampling' \(generate\)"):
        machine.take("generate")
    machine.take("sync")
    machine.take("wake_cache")
    machine.take("generate")
    with pytest.raises(EngineError, match="from 'sampling' to 'asleep'"):
        machine.take("sleep")


def test_level_0_never_sleeps_and_there_is_no_level_3() -> None:
    machine = StateMachine(0)
    machine.take("sync")
    with pytest.raises(EngineError, match="sleep level is 0"):
        machine.take("sleep")
    with pytest.raises(EngineError, match="sleep level 3"):
        StateMachine(3)
