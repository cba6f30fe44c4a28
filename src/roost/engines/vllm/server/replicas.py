"""The servers of one ``roost serve``: one that dies is started again, and its address told anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from roost.engines.vllm.server.addresses import Address
from roost.engines.vllm.server.process import ServerProcess
from roost.errors import EngineError

RESTARTS = 3
"""Times in a row that one is started again."""
STEADY_S = 600.0
"""Seconds of answering after which a death is the first in a row."""
_LOOK_S = 0.2


class Replicas:
    """Watches servers and owns their processes.

    Args:
        starts: Start one server each.
        tell: Told all addresses once all servers answer, and whenever one of them is another.
        say: Told what a person should know.
    """

    def __init__(
        self,
        starts: Sequence[Callable[[], ServerProcess]],
        tell: Callable[[list[Address]], None],
        say: Callable[[str], None],
    ) -> None:
        self._tell = tell
        self._replicas: list[_Replica] = []
        try:
            for start in starts:
                self._replicas.append(_Replica(start, say))
        except BaseException:
            self.close()
            raise

    def run(self) -> None:
        """Go on until interrupted.

        Raises:
            EngineError: one cannot be started, or dies again and again; its last lines are shown.
        """
        while True:
            self.look()
            time.sleep(_LOOK_S)

    def look(self) -> None:
        """See to each server once.

        Raises:
            EngineError: see ``run``.
        """
        moved = [replica.look() for replica in self._replicas]
        known = [replica.address for replica in self._replicas if replica.address is not None]
        if any(moved) and len(known) == len(self._replicas):
            self._tell(known)

    def close(self) -> None:
        """End all, at once."""
        for replica in self._replicas:
            replica.process.stop()
        for replica in self._replicas:
            replica.process.close()


class _Replica:
    """One server, whichever process it is at the moment."""

    def __init__(self, start: Callable[[], ServerProcess], say: Callable[[str], None]) -> None:
        self._start, self._say = start, say
        self.process = start()
        self.address: Address | None = None
        """Where it is, or was before it died; None until it has answered once."""
        self._answers_since: float | None = None
        self._deaths = 0

    def look(self) -> bool:
        """Start it again where it has died; whether it has an address that is new."""
        if self._answers_since is not None:
            if not self.process.alive:
                self._start_again(self.process.ending())
            return False
        try:
            address = self.process.ready()
        except EngineError as error:
            if self.address is None:
                raise
            self._start_again(error)
            return False
        if address is None:
            return False
        self.address, self._answers_since = address, time.monotonic()
        return True

    def _start_again(self, death: EngineError) -> None:
        since = self._answers_since
        steady = since is not None and time.monotonic() - since > STEADY_S
        self._deaths = 1 if steady else self._deaths + 1
        if self._deaths > RESTARTS:
            raise EngineError(f"started again {RESTARTS} times, and each time {death}") from death
        self._say(f"{death}\nstarting it again")
        self.process.kill()
        self.process, self._answers_since = self._start(), None
