"""Where servers listen, and the address that other machines are told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from roost.engines.vllm.server.addresses import Address
from roost.engines.vllm.server.hello import hello
from roost.engines.vllm.server.listening import advertised, check_listening
from roost.errors import ConfigError
from roost.model.policy import Policy
from support.served_port import ServedPort, SlowPort
from support.small_models import build


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="until this machine has IPv6")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What the resolver knows; the machine is called ``gpu-7``."""
    known = {"gpu-7": ["127.0.1.1", "10.0.0.7"], "gpu-7.lan": ["10.0.0.7"]}
    honest = socket.getaddrinfo

    def resolve(host: str, port: Any, **options: Any) -> list[Any]:
        if host not in known:
            return honest(host, port, **options, flags=socket.AI_NUMERICHOST)
        return [(socket.AF_INET, 0, 0, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-7")
    return known


@pytest.mark.parametrize(
    ("host", "given", "told"),
    [
        ("0.0.0.0", None, "gpu-7"),
        ("::", None, "gpu-7"),
        ("", None, "gpu-7"),
        ("0.0.0.0", "gpu-7.lan", "gpu-7.lan"),
        ("0.0.0.0", "10.0.0.7", "10.0.0.7"),
        ("::", "[fe80::1]", "fe80::1"),
        ("10.0.0.7", None, "10.0.0.7"),
        ("127.0.0.1", None, "127.0.0.1"),
        ("127.0.0.1", "localhost", "localhost"),
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_others_are_told_what_they_can_connect_to(
    host: str, given: str | None, told: str, names: dict[str, list[str]]
) -> None:
    names["localhost"] = ["127.0.0.1"]
    assert advertised(host, given) == told


@pytest.mark.parametrize(
    ("host", "given", "says"),
    [
        ("0.0.0.0", "0.0.0.0", "--advertise 0.0.0.0: nobody can connect to that"),
        ("::", "::", "--advertise ::: nobody can connect to that"),
        ("0.0.0.0", "", "nobody can connect to that"),
        ("0.0.0.0", "http://gpu-7", "--advertise http://gpu-7: is no host.*without http://"),
        ("0.0.0.0", "gpu-7:80", "--advertise gpu-7:80: is no host"),
        ("0.0.0.0", "gpu-8", "--advertise gpu-8: the host is not known here"),
        ("0.0.0.0", "gpu-7..lan", "--advertise gpu-7..lan: the host is not known here"),
        ("127.0.0.1", "gpu-7", r"listens to its own machine alone \(--host 127.0.0.1\)"),
    ],
)
def test_what_nobody_can_connect_to_is_refused(
    host: str, given: str, says: str, names: dict[str, list[str]]
) -> None:
    with pytest.raises(ConfigError, match=says):
        advertised(host, given)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (
            {"gpu-7": ["127.0.1.1"]},
            r"'gpu-7' leads to itself alone \(127.0.1.1\). Give",
        ),
        ({}, "'gpu-7' is not known to itself"),
    ],
)
def test_a_machine_whose_name_leads_nowhere_has_to_be_told(
    known: dict[str, list[str]], says: str, names: dict[str, list[str]]
) -> None:
    names.clear()
    names.update(known)
    with pytest.raises(ConfigError, match=f"--host 0.0.0.0: nobody can connect to that.*{says}"):
        advertised("0.0.0.0", None)


@contextmanager
def serving(host: str) -> Iterator[ServedPort]:
    served = ServedPort(SlowPort(Policy(build("llama"))), token="sesame", host=host)
    try:
        yield served
    finally:
        served.close()


@pytest.mark.parametrize(
    ("host", "callers"),
    [
        ("0.0.0.0", ["127.0.0.1"]),
        pytest.param("::", ["::1", "127.0.0.1"], marks=needs_ipv6),
        pytest.param("::1", ["::1"], marks=needs_ipv6),
    ],
)
def test_it_answers_at_the_address_that_is_told(host: str, callers: list[str]) -> None:
    with serving(host) as served:
        for caller in callers:
            assert hello(Address(served.server.url(caller), "sesame"))["id"]


def test_a_port_that_is_taken_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        says = f"--port {port}: this machine cannot listen at 127.0.0.1, port {port} .Address alr"
        with pytest.raises(ConfigError, match=says):
            check_listening("127.0.0.1", port)


def test_an_address_of_another_machine_cannot_be_listened_to(names: dict[str, list[str]]) -> None:
    with pytest.raises(ConfigError, match="--host 192.0.2.1: this machine cannot listen at 192"):
        check_listening("192.0.2.1", 0)
    with pytest.raises(ConfigError, match="--host gpu-8: the host is not known here"):
        check_listening("gpu-8", 0)
