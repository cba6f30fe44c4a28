"""Where a server of a run is found, and found again after it has died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roost.engines.vllm.client import ServerGone
from roost.engines.vllm.port import VllmSettings
from roost.engines.vllm.server.addresses import Address, read_addresses
from roost.engines.vllm.server.process import ServerProcess
from roost.errors import ConfigError, EngineError

RESTARTS = 3
"""Times that a server is started again without finishing a sample in between."""


class Place(Protocol):
    """One server, whichever process it is at the moment."""

    def address(self) -> Address:
        """Where it is now; starts it where that is ours to do.

        Raises:
            ServerGone: nowhere at the moment.
            EngineError: it cannot be had.
        """
        ...

    def lost(self) -> None:
        """It did not answer: whatever process it is, it is given up."""
        ...

    def proved_useful(self) -> None:
        """It has finished a sample."""
        ...

    def close(self) -> None:
        """It is needed no longer."""
        ...


class KnownPlace:
    """A server that someone else started.

    Args:
        entry: A URL or an address file, which is read anew each time: a server that was started
            again has another port.
        index: Which of the file's servers.
        token: The secret for a URL.
    """

    def __init__(self, entry: str, index: int = 0, token: str | None = None) -> None:
        self._entry, self._index, self._token = entry, index, token

    def address(self) -> Address:
        """See ``Place``."""
        try:
            return read_addresses(self._entry, self._token)[self._index]
        except (ConfigError, IndexError) as error:
            raise ServerGone(f"rollout.servers: {self._entry}: no server: {error}") from error

    def lost(self) -> None:
        """See ``Place``."""

    def proved_useful(self) -> None:
        """See ``Place``."""

    def close(self) -> None:
        """See ``Place``."""


class LaunchedPlace:
    """A server that the run starts, starts again when it dies, and stops.

    Args:
        settings: Of its engine.
        cards: The GPUs it runs on, if any.
    """

    def __init__(self, settings: VllmSettings, cards: Sequence[int] | None = None) -> None:
        self._settings, self._cards = settings, cards
        self._process: ServerProcess | None = None
        self._starts = 0

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def address(self) -> Address:
        """See ``Place``."""
        if self._process is None:
            self._starts += 1
            if self._starts > RESTARTS + 1:
                raise EngineError(
                    f"the vLLM server of this run died {RESTARTS} times without finishing a sample."
                    " Start one with `roost serve` to see why."
                )
            self._process = ServerProcess(self._settings, cards=self._cards)
        return self._process.wait()

    def lost(self) -> None:
        """See ``Place``."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def proved_useful(self) -> None:
        """See ``Place``."""
        self._starts = 1

    def close(self) -> None:
        """See ``Place``."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
