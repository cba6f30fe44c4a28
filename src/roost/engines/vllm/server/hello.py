"""Whether a server is there, asked without attaching to it: a trainer that it serves goes on."""

from __future__ import annotations

import http.client
import socket
from typing import Any
from urllib.parse import urlsplit

from roost.engines.vllm.server import wire
from roost.engines.vllm.server.addresses import Address
from roost.errors import EngineError

CONNECT_S = 5.0
ANSWER_S = 10.0
"""Seconds for an answer that no engine has to be waited for."""
_SESSION = "hello"


class TokenRefused(EngineError):
    """There is a server, and it asks for a secret that was not given."""


def hello(address: Address) -> dict[str, Any]:
    """What a server says of itself: ``id``, which no two share.

    Raises:
        TokenRefused: it asks for another secret.
        EngineError: what was tried, and what came of it.
    """
    parts = urlsplit(address.url)
    place = parts.netloc
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT_S)
    try:
        _connect(connection, place)
        status, answer = _ask(connection, address)
    finally:
        connection.close()
    if status == 401:
        asks = "another token" if address.token else "a token"
        raise TokenRefused(f"the server at {place} asks for {asks}")
    if status != 200:
        raise EngineError(f"the server at {place} answers: {answer.get('error', status)}")
    return answer


def _connect(connection: http.client.HTTPConnection, place: str) -> None:
    try:
        connection.connect()
    except ConnectionRefusedError as error:
        raise EngineError(f"nothing listens at {place} (connection refused)") from error
    except socket.gaierror as error:
        raise EngineError(f"the host of {place} is not known ({error.strerror})") from error
    except TimeoutError as error:
        raise EngineError(f"{place} cannot be reached: no answer in {CONNECT_S:g} s") from error
    except OSError as error:
        raise EngineError(f"{place} cannot be reached ({error.strerror or error})") from error


def _ask(connection: http.client.HTTPConnection, address: Address) -> tuple[int, dict[str, Any]]:
    place = urlsplit(address.url).netloc
    headers = wire.headers(_SESSION, address.token)
    try:
        connection.sock.settimeout(ANSWER_S)
        connection.request("POST", "/hello", wire.encode({}), headers)
        response = connection.getresponse()
        return response.status, wire.decode(response.read())[0]
    except TimeoutError as error:
        raise EngineError(
            f"what listens at {place} has not answered in {ANSWER_S:g} s: it is no Roost server, "
            "or it hangs"
        ) from error
    except (EngineError, OSError, http.client.HTTPException) as error:
        raise EngineError(f"what answers at {place} is not a Roost server") from error
