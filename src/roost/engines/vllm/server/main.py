"""The serving process, from its settings to its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from roost.engines.vllm.port import VllmSettings
from roost.engines.vllm.server.addresses import Address
from roost.engines.vllm.server.http import Server
from roost.engines.vllm.server.listening import check_listening, check_token
from roost.engines.vllm.server.service import Service
from roost.sync.held_folder import HeldFolder


def serve(
    settings: VllmSettings,
    *,
    host: str,
    advertise: str,
    port: int,
    token: str | None,
    on_ready: Callable[[Address], None],
    until_stdin_ends: bool = False,
) -> None:
    """Load the model and serve until a signal, or until standard input ends.

    Args:
        settings: Of the engine.
        host: Address to listen on.
        advertise: The host that callers connect to.
        port: 0 takes any that is free.
        token: The secret that callers must know; needed unless ``host`` is loopback.
        on_ready: Told the address once calls are answered.
        until_stdin_ends: Also end with the process at the other end of standard input, however
            that one ends.

    Raises:
        ConfigError: it cannot listen there, or would listen to a network without a token.
    """
    check_token(host, token)
    check_listening(host, port)
    # Importing the adapter imports vLLM.
    from roost.engines.vllm.adapter import VllmAdapter

    folder = HeldFolder("server")
    # vLLM leaves the sockets of its shards' processes behind, even when it ends in order.
    os.environ.setdefault("VLLM_RPC_BASE_PATH", str(folder.path))
    engine = VllmAdapter(settings)
    service = Service(engine, settings, folder)
    engine.when_a_shard_dies(service.fail)

    def on_signal(number: int, frame: FrameType | None) -> None:
        service.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    with Server(service, host, port, token) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if until_stdin_ends:
            threading.Thread(target=_stop_with_stdin, args=(service,), daemon=True).start()
        on_ready(Address(server.url(advertise), token))
        service.run()
        server.shutdown()


def _stop_with_stdin(service: Service) -> None:
    while sys.stdin.buffer.read(1):
        pass
    service.stop()
