"""The HTTP side of a server: who may call, how much, and how errors are said.

``GET /health`` answers anyone. Every other call is ``POST /NAME`` with a message of ``wire``,
and in its headers the session and, where the server has one, the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from roost.engines.vllm.server import wire
from roost.engines.vllm.server.service import Conflict, Service
from roost.errors import ConfigError, EngineError

log = logging.getLogger(__name__)

MAX_BODY = 2**36
"""Bytes of one request. A bucket is 256 MiB; a single tensor may be wider."""
_SOCKET_S = 60.0
"""Seconds that a connection may be silent in the middle of a request."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str, token: str | None) -> None:
    """Refuse to listen to a network without a token.

    Raises:
        ConfigError: with what to do.
    """
    if not is_loopback(host) and not token:
        raise ConfigError(
            f"--host {host}: others could reach this server, read your model and run it; give "
            "--token-file FILE, a file with a secret in one line, or leave --host at 127.0.0.1."
        )


class Server(ThreadingHTTPServer):
    """Listens; port 0 takes any that is free."""

    daemon_threads = True

    def __init__(self, service: Service, host: str, port: int, token: str | None) -> None:
        check_host(host, token)
        self.service = service
        self.token = token
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """Where it can be reached."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"


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
