"""A recorded engine behind the real service and HTTP server, within the test's process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.port import Finished, Request, VllmSettings
from roost.engines.vllm.server.addresses import Address
from roost.engines.vllm.server.http import Server
from roost.engines.vllm.server.service import Service
from roost.model.policy import Policy
from roost.sync.held_folder import HeldFolder
from support.recorded_port import RecordedPort

SETTINGS = VllmSettings(
    model="recorded",
    dtype=torch.float32,
    device="cpu",
    cache_bytes=7,
    max_tokens=32,
    max_sequences=4,
    seed=0,
)


class SlowPort(RecordedPort):
    """Takes some time for a sample, and refuses a prompt that holds token 13."""

    def __init__(self, policy: Policy, sample_s: float = 0.0) -> None:
        super().__init__(policy)
        self.sample_s = sample_s
        self.made = 0

    def submit(self, requests: Sequence[Request], sampling: SamplingParams) -> list[str]:
        if any(13 in request.token_ids for request in requests):
            raise ValueError("13 is refused")
        return super().submit(requests, sampling)

    def step(self) -> list[Finished]:
        time.sleep(self.sample_s)
        self.made += 1
        return super().step()


class _Droppable(Server):
    """Remembers its connections, so that they can be broken."""

    def __init__(self, service: Service, host: str, port: int, token: str | None) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(service, host, port, token)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def drop_connections(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class ServedPort:
    """A server of its own threads. ``die`` ends it as a killed process ends."""

    def __init__(
        self,
        port: RecordedPort,
        token: str | None = None,
        number: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.port = port
        self.service = Service(port, SETTINGS, HeldFolder("test"))
        self.server = _Droppable(self.service, host, number, token)
        self.address = Address(self.server.url("127.0.0.1"), token)
        self._threads = [
            threading.Thread(target=self.service.run, daemon=True),
            threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def die(self) -> None:
        """Stop answering and drop every connection."""
        self.server.drop_connections()
        self.close()

    def close(self) -> None:
        """End its threads."""
        self.server.shutdown()
        self.server.server_close()
        self.service.stop()
        self._threads[0].join(5)
