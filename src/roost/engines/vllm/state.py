"""Which step an engine with weights of its own may take next. Pure: no engine, no tensors.

One machine owns the question for one engine. Invariant: every call to the engine that changes what
it holds is announced here first, and announced again when it is done; so the engine is never asked
to sample with weights that were not synced, to sleep while a request runs, or to wake all at once
(writing weights into memory that is not mapped, or a cache filled under old weights).

::

    GENERATING <-> READY <-- sync -- STALE
                     |                 |
                     +---- sleep ------+--> ASLEEP --wake--> WEIGHTS_AWAKE
                     ^                                             | sync
                     +------------- wake cache --------------- WEIGHTS_SYNCED
"""

from __future__ import annotations

from enum import StrEnum

from roost.errors import EngineError

LEVELS = (0, 1, 2)
"""0: awake always. 1: weights go to host memory, the cache is dropped. 2: both are dropped."""


class State(StrEnum):
    """What an engine holds and does."""

    STALE = "awake with weights that are not the policy's"
    READY = "ready to sample"
    GENERATING = "sampling"
    ASLEEP = "asleep"
    WEIGHTS_AWAKE = "half awake, its weights not yet synced"
    WEIGHTS_SYNCED = "half awake, its cache not yet there"


_STEPS: dict[str, dict[State, State]] = {
    "outdate": {State.READY: State.STALE, State.STALE: State.STALE},
    "sync": {State.STALE: State.READY, State.WEIGHTS_AWAKE: State.WEIGHTS_SYNCED},
    "generate": {State.READY: State.GENERATING},
    "drain": {State.GENERATING: State.READY},
    "sleep": {State.READY: State.ASLEEP, State.STALE: State.ASLEEP},
    "wake_weights": {State.ASLEEP: State.WEIGHTS_AWAKE},
    "wake_cache": {State.WEIGHTS_SYNCED: State.READY},
}
"""By step, from which state it leads to which."""

STEPS = tuple(_STEPS)
"""Names that ``StateMachine.check`` and ``take`` know."""


class StateMachine:
    """Owns the state of one engine.

    Args:
        level: Its sleep level; at 0 it never sleeps.
    """

    def __init__(self, level: int = 0) -> None:
        if level not in LEVELS:
            raise EngineError(f"sleep level {level}: should be 0, 1 or 2.")
        self.level = level
        self._state = State.STALE

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._state

    def check(self, step: str) -> State:
        """The state that a step would lead to; nothing is changed.

        Raises:
            EngineError: the step is not possible now; both states are named.
        """
        leads = _STEPS[step]
        target = leads.get(self._state)
        if step == "sleep" and self.level == 0:
            raise EngineError(
                f"the engine cannot go from '{self._state}' to '{State.ASLEEP}': its sleep level "
                "is 0, at which it stays awake (rollout.sleep)."
            )
        if target is None:
            wanted = next(iter(leads.values()))
            before = " or ".join(f"'{state}'" for state in leads)
            raise EngineError(
                f"the engine cannot go from '{self._state}' to '{wanted}' ({step}): that is only "
                f"possible from {before}."
            )
        return target

    def take(self, step: str) -> None:
        """Note that a step has been carried out.

        Raises:
            EngineError: as ``check``.
        """
        self._state = self.check(step)
