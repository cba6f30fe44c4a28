"""Where a server listens, checked before a model is loaded, and what others are told of it."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from roost.errors import ConfigError


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def is_everywhere(host: str) -> bool:
    """Whether it stands for all addresses of this machine, and so is none to connect to.

    >>> is_everywhere("0.0.0.0"), is_everywhere("::"), is_everywhere("10.0.0.1")
    (True, True, False)
    """
    address = _address(host)
    return not host or (address is not None and address.is_unspecified)


def url_of(host: str, port: int) -> str:
    """The URL of a server.

    >>> url_of("10.0.0.1", 80), url_of("fe80::1", 80)
    ('http://10.0.0.1:80', 'http://[fe80::1]:80')
    """
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_token(host: str, token: str | None) -> None:
    """Refuse to listen to a network without a token.

    Raises:
        ConfigError: with what to do.
    """
    if not is_loopback(host) and not token:
        raise ConfigError(
            f"--host {host}: others could reach this server, read your model and run it; give "
            "--token-file FILE, a file with a secret in one line, or leave --host at 127.0.0.1."
        )


def check_listening(host: str, port: int) -> None:
    """Listen for a moment.

    Raises:
        ConfigError: that is not possible here.
    """
    try:
        family = family_of(host)
    except OSError as error:
        raise ConfigError(f"--host {host}: {_unknown(error)}. {_LISTEN}") from error
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            where = f"--port {port}" if port else f"--host {host}"
            raise ConfigError(
                f"{where}: this machine cannot listen at {host}, port {port or 'any'} "
                f"({error.strerror}). {_LISTEN}"
            ) from error


_LISTEN = (
    "Give --host an address of this machine, 127.0.0.1 for itself alone or 0.0.0.0 for all it has, "
    "and leave --port out for one that is free."
)


def family_of(host: str) -> socket.AddressFamily:
    """IPv4, or IPv6 where the host has no other.

    Raises:
        OSError: the host is not known.
    """
    found = {info[0] for info in _resolve(host or "0.0.0.0")}
    return socket.AF_INET if socket.AF_INET in found else socket.AF_INET6


def advertised(host: str, given: str | None) -> str:
    """The host that callers are to connect to.

    Args:
        host: Where the server listens.
        given: ``--advertise``; without it the machine's own name stands for all its addresses.

    Raises:
        ConfigError: none that others could connect to.
    """
    if given is None:
        return _own_name(host) if is_everywhere(host) else host
    plain = given[1:-1] if given.startswith("[") and given.endswith("]") else given
    problem = _wrong(plain, host)
    if problem:
        raise ConfigError(
            f"--advertise {given}: {problem}. Give the name or address at which trainers reach "
            "this machine, without http:// and port."
        )
    return plain


def _wrong(plain: str, host: str) -> str | None:
    if is_loopback(host) and not is_loopback(plain):
        return f"the server listens to its own machine alone (--host {host}); set --host too"
    if is_everywhere(plain):
        return "nobody can connect to that"
    if "/" in plain or (":" in plain and _address(plain) is None):
        return "is no host"
    try:
        _resolve(plain)
    except OSError as error:
        return _unknown(error)
    return None


def _own_name(host: str) -> str:
    name = socket.gethostname()
    try:
        found = sorted({str(info[4][0]) for info in _resolve(name)})
        problem = f"leads to itself alone ({', '.join(found)})"
        if not all(is_loopback(one) for one in found):
            return name
    except OSError as error:
        problem = f"is not known to itself ({error.strerror})"
    raise ConfigError(
        f"--host {host or 'of all addresses'}: nobody can connect to that, and this machine's name "
        f"{name!r} {problem}. Give --advertise HOST, the name or address at which trainers reach "
        "this machine."
    )


def _unknown(error: OSError) -> str:
    return f"the host is not known here ({error.strerror})"


def _resolve(host: str) -> list[tuple[Any, ...]]:
    try:
        return list(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(0, str(error)) from error


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
