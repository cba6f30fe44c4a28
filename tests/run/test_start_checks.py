"""What is refused before anything is read, and what a check leaves as it was."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roost.config import RunConfig
from roost.config.loading import build_config
from roost.engines.vllm.client import RemotePort
from roost.errors import ConfigError
from roost.model.policy import Policy
from roost.run.display import QuietDisplay
from roost.run.launch import PythonObjects, check_run, start_run
from roost.run.start_checks import check_processes, check_servers
from support.listeners import free_port
from support.served_port import ServedPort, SlowPort
from support.small_models import build
from support.tiny_runs import SECTIONS


def config(**rollout: Any) -> RunConfig:
    return build_config({"rollout": {"engine": "vllm", **rollout}})


def on(*servers: str, **others: Any) -> RunConfig:
    return config(mode="server", servers=list(servers), **others)


@pytest.fixture
def served() -> Iterator[ServedPort]:
    server = ServedPort(SlowPort(Policy(build("llama"))), token="sesame")
    yield server
    server.close()


def test_a_server_that_is_there_passes_and_its_trainer_goes_on(
    served: ServedPort, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("sesame")
    trainer = RemotePort(served.address)
    check_servers(on(served.address.url, token_file="secret"), tmp_path)
    trainer.start_update()
    trainer.close()


def test_one_that_hangs_is_refused_in_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("roost.engines.vllm.server.hello.ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(ConfigError, match="has not answered in 0.2 s: it is no Roost server"):
            check_servers(on(url), tmp_path)
    assert time.monotonic() - begun < 5


def start(run: RunConfig, base_dir: Path) -> None:
    start_run(run, base_dir, QuietDisplay(), objects=PythonObjects())


def check(run: RunConfig, base_dir: Path) -> None:
    check_run(run, base_dir, QuietDisplay())


@pytest.mark.parametrize("begin", [start, check])
def test_servers_are_asked_before_the_model_is_read(
    begin: Callable[[RunConfig, Path], None], tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    run = on(url).model_copy(update={"model": build_config({"model": "no-such-model"}).model})
    with pytest.raises(ConfigError, match=f"rollout.servers: '{url}': nothing listens at 127"):
        begin(run, tmp_path)


@pytest.mark.parametrize(
    ("world", "rollout", "says"),
    [
        ("3", {"tensor_parallel": 2}, "rollout.tensor_parallel = 2: .* there are 3. Set it to one"),
        ("1", {"tensor_parallel": 2}, "each engine takes 2 processes, and there is 1"),
        ("2", {"mode": "server", "launch": True}, "rollout.mode = 'server' in 2 processes"),
    ],
)
def test_processes_that_do_not_suit_are_refused(
    world: str, rollout: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(ConfigError, match=says):
        check(config(**rollout), tmp_path)


def test_a_recipe_checked_without_torchrun_may_be_started_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr("roost.run.engines.installed_version", lambda: "0.32.0")
    shards = {"engine": "vllm", "tensor_parallel": 2}
    run = build_config({**SECTIONS, "rollout": {**SECTIONS["rollout"], **shards}})
    check_processes(run)
    display = QuietDisplay()
    check_run(run, tmp_path, display)
    assert "note    start it with torchrun --nproc-per-node, a multiple of 2" in display.lines
