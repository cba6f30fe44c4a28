"""The HTTP side of a server: who may call, how much, and how errors are said.

``GET /health`` answers anyone. Every other call is ``POST /NAME`` with a message of ``wire``,
and in its headers the session and, where the server has one, the token.
"""

from __future__ import annotations

import hmac
import logging
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from roost.engines.vllm.server import wire
from roost.engines.vllm.server.listening import check_token, family_of, url_of
from roost.engines.vllm.server.service import Conflict, Service
from roost.errors import EngineError

log = logging.getLogger(__name__)

MAX_BODY = 2**36
"""Bytes of one request. A bucket is 256 MiB; a single tensor may be wider."""
_SOCKET_S = 60.0
"""Seconds that a connection may be silent in the middle of a request."""


class Server(ThreadingHTTPServer):
    """Listens.

    Args:
        service: Carries out what is asked.
        host: Where to listen; ``::`` takes IPv4 too.
        port: 0 takes any that is free.
        token: The secret that callers must know.

    Raises:
        ConfigError: it would listen to a network without a token.
    """

    daemon_threads = True

    def __init__(self, service: Service, host: str, port: int, token: str | None) -> None:
        check_token(host, token)
        self.service = service
        self.token = token
        self.address_family = family_of(host)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Take IPv4 too at ``::``."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def url(self, host: str) -> str:
        """Where callers that know this machine as ``host`` reach it."""
        return url_of(host, self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SOCKET_S
    server: Server

    def do_GET(self) -> None:
        known = self.path == "/health"
        self._answer(200 if known else 404, {} if known else {"error": "no such page"})

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length", "")
        allowed = self._is_allowed()
        if not allowed or not size.isdigit() or int(size) > MAX_BODY:
            # What was sent is not read, so the connection cannot be used again.
            self.close_connection = True
            what = "a length is missing or too large" if allowed else "wrong or missing token"
            self._answer(400 if allowed else 401, {"error": what})
            return
        body = self.rfile.read(int(size))
        self._answer(*self._carry_out(body))

    def _carry_out(self, body: bytes) -> tuple[int, dict[str, Any]]:
        session = self.headers.get(wire.SESSION_HEADER, "")
        if not session:
            return 400, {"error": f"the header {wire.SESSION_HEADER} is missing"}
        try:
            message, data = wire.decode(body)
            return 200, self.server.service.call(session, self.path.strip("/"), message, data)
        except Conflict as error:
            return 409, {"error": str(error)}
        except TimeoutError:
            return 504, {"error": "the engine did not come to it in time"}
        except (EngineError, ValueError, KeyError, TypeError) as error:
            known = isinstance(error, EngineError)
            return 400, {"error": str(error) if known else f"{type(error).__name__}: {error}"}

    def _is_allowed(self) -> bool:
        if self.server.token is None:
            return True
        given = self.headers.get(wire.TOKEN_HEADER, "")
        return hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode())

    def _answer(self, status: int, message: dict[str, Any]) -> None:
        body = wire.encode(message)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: a trainer polls all the time."""
        log.debug(format, *args)
