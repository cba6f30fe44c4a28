"""One server of a run: connected, synced and proven, or on its way there."""

from __future__ import annotations

import threading
from collections.abc import Callable

from roost.engines.vllm.client import RemotePort, ServerGone
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.places import Place
from roost.errors import EngineError

MakeEngine = Callable[[RemotePort], VllmEngine]


class Member:
    """A server and the thread that connects to it.

    Invariant: connecting, which may take as long as loading a model, touches no weight of the
    policy, so it may go on while the trainer trains. All else is called by one thread at a time,
    and ``sync`` while the policy stands still.

    Args:
        place: Where it is found.
        make_engine: Builds the engine around a connection; raises where the two do not fit.
    """

    def __init__(self, place: Place, make_engine: MakeEngine) -> None:
        self._place = place
        self._make_engine = make_engine
        self._thread: threading.Thread | None = None
        self._port: RemotePort | None = None
        self._error: Exception | None = None
        self.engine: VllmEngine | None = None
        """None while there is no server."""

    @property
    def port(self) -> RemotePort:
        """The connection of ``engine``."""
        assert self._port is not None
        return self._port

    def connect(self, wait_s: float | None) -> bool:
        """Go on connecting; True once there is an engine, which may have to be synced.

        Args:
            wait_s: How long to wait for it; None without end: each part has a deadline of its own.

        Raises:
            ServerGone: it does not answer. The next call tries again.
            EngineError: it cannot be used.
        """
        if self.engine is not None:
            return True
        if self._thread is None:
            self._thread = threading.Thread(target=self._connect, daemon=True)
            self._thread.start()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            return False
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        try:
            self.engine = self._make_engine(self.port)
        except EngineError:
            self._leave()
            raise
        return True

    @property
    def version(self) -> int | None:
        """Of the weights that it samples with; None where it may not."""
        return None if self.engine is None else self.engine.version

    def sync(self) -> dict[str, float]:
        """Give it the policy's weights where it has others.

        Raises:
            ServerGone: it did not answer.
            EngineError: the proof does not hold.
        """
        assert self.engine is not None
        return self.engine.sync()

    def lose(self) -> None:
        """It did not answer: let it go; ``connect`` looks for it again."""
        self._leave()
        self._place.lost()

    def proved_useful(self) -> None:
        """It has finished a sample."""
        self._place.proved_useful()

    def close(self) -> None:
        """Leave it, and end it where it was started by the run."""
        self._place.close()
        if self._thread is not None:
            self._thread.join(1.0)
        self._leave()

    def _leave(self) -> None:
        if self.engine is not None:
            self.engine.close()
        if self._port is not None:
            self._port.close()
        self.engine = self._port = None

    def _connect(self) -> None:
        try:
            self._port = RemotePort(self._place.address())
        except ServerGone as error:
            self._place.lost()
            self._error = error
        except EngineError as error:
            self._error = error
