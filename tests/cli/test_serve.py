"""``roost serve`` says what is wrong before it loads anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from roost.engines.vllm.server.addresses import Address, read_addresses, write_addresses
from roost.engines.vllm.server.listening import url_of
from roost.errors import ConfigError
from support.commands import run, succeed


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "my-server"])
def test_it_refuses_to_listen_elsewhere_without_a_token(host: str) -> None:
    said = run("serve", "tiny", "--host", host)
    assert said.code == 2
    assert f"--host {host}: others could reach this server" in said.error
    assert "--token-file" in said.error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--replicas", "0"), "--replicas 0: should be 1 or more"),
        (("--port", "70000"), "--port 70000: should be from 0"),
        (("--replicas", "2", "--port", "8000"), "--replicas 2 need one each"),
        (("--token-file", "/nowhere/token"), "token file '/nowhere/token' cannot be read"),
        (("--tensor-parallel-size", "0"), "--tensor-parallel-size 0: should be 1 or more"),
        (("--tensor-parallel-size", "3"), "the model's attention heads (4) cannot be divided"),
        (("--lora-rank", "600"), "--lora-rank 600: should be from 1 to 512"),
    ],
)
def test_bad_options_are_named(
    arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.engines.vllm.installed_version", lambda: "0.32.0")
    said = run("serve", "tiny", *arguments)
    assert said.code == 2
    assert says in said.error


def test_more_shards_than_cards_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.engines.vllm.installed_version", lambda: "0.32.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    said = run("serve", "tiny", "--replicas", "2", "--tensor-parallel-size", "2")
    assert said.code == 2
    assert "need 4 GPUs and this machine has 3" in said.error


def test_another_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.engines.vllm.installed_version", lambda: "0.19.1")
    assert "vLLM 0.19.1 is installed; supported is 0.32.x" in run("serve", "tiny").error


def test_the_address_file_names_what_others_connect_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the address that stands for all of this machine's."""

    def serve(settings: Any, **asked: Any) -> None:
        asked["on_ready"](Address(url_of(asked["advertise"], 5), asked["token"]))

    monkeypatch.setattr("roost.engines.vllm.installed_version", lambda: "0.32.0")
    monkeypatch.setattr("roost.engines.vllm.server.main.serve", serve)
    (tmp_path / "token").write_text("sesame")
    file = tmp_path / "servers.json"
    asked = ("serve", "tiny", "--host", "0.0.0.0", "--token-file", tmp_path / "token")
    said = succeed(*asked, "--advertise", "192.0.2.7", "--address-file", file)
    assert said.json == {"servers": ["http://192.0.2.7:5"]}
    assert read_addresses(str(file)) == [Address("http://192.0.2.7:5", "sesame")]


@pytest.mark.parametrize("content", ["", "  \n", "two\nlines"])
def test_a_token_file_holds_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    said = run("serve", "tiny", "--token-file", file)
    assert "should hold one line of printable ASCII" in said.error


def test_addresses_are_for_their_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    addresses = [Address("http://127.0.0.1:5", "secret"), Address("http://127.0.0.1:6")]
    write_addresses(file, addresses)
    assert read_addresses(str(file)) == addresses
    assert file.stat().st_mode & 0o077 == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["servers.json"]


def test_an_entry_is_a_url_or_a_file(tmp_path: Path) -> None:
    assert read_addresses("http://a:1/", "t") == [Address("http://a:1", "t")]
    other = tmp_path / "other.json"
    other.write_text(json.dumps([1]))
    for entry, says in [
        ("https://a:1", "should be http://HOST:PORT"),
        (str(tmp_path / "none.json"), "cannot be read"),
        (str(other), "is no file that"),
    ]:
        with pytest.raises(ConfigError, match=says):
            read_addresses(entry)
