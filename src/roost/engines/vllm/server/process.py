"""A server as a child process: started, waited for, noticed when it dies, and ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import roost
from roost.engines.vllm.port import VllmSettings
from roost.engines.vllm.server.addresses import Address, read_addresses
from roost.errors import EngineError
from roost.sync.held_folder import HeldFolder

START_S = 600.0
"""Seconds that a server may take to load a model."""
_STOP_S = 10.0
_LOG_LINES = 15


class ServerProcess:
    """One ``roost serve`` of our own, which ends when this process does.

    Args:
        settings: Of its engine.
        options: Further arguments of ``roost serve``.
        cards: The GPUs it runs on; None leaves that to CUDA.
    """

    def __init__(
        self,
        settings: VllmSettings,
        options: Sequence[str] = (),
        cards: Sequence[int] | None = None,
    ) -> None:
        # A folder that only its owner can enter: the address file holds the token.
        self._folder = HeldFolder("serve", in_memory=False)
        self._file = self._folder.path / "address.json"
        self._log = self._folder.path / "log.txt"
        self._deadline = time.monotonic() + START_S
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "roost", "serve", settings.model),
                    *("--settings", json.dumps(settings_out(settings))),
                    *("--address-file", str(self._file), "--own-token", "--until-stdin-ends"),
                    *options,
                ],
                stdin=subprocess.PIPE,
                env=_environment(cards),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait(self) -> Address:
        """Its address, once it answers.

        Raises:
            EngineError: see ``ready``.
        """
        while (address := self.ready()) is None:
            time.sleep(0.05)
        return address

    def ready(self) -> Address | None:
        """Its address; None while it does not answer yet.

        Raises:
            EngineError: it ended before, or took too long; its last lines are shown.
        """
        if self._file.exists():
            return read_addresses(str(self._file))[0]
        if not self.alive:
            raise self.ending()
        if time.monotonic() > self._deadline:
            raise EngineError(
                f"the vLLM server (pid {self.pid}) was not ready after {START_S:.0f} s:\n"
                f"{self._last_lines()}"
            )
        return None

    def ending(self) -> EngineError:
        """How it has ended, with the end of what it has printed."""
        code = self._process.poll()
        return EngineError(
            f"the vLLM server (pid {self.pid}) ended with code {code}:\n{self._last_lines()}"
        )

    def _last_lines(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])

    def stop(self) -> None:
        """Ask it to end."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def close(self) -> None:
        """End it: asked first, then killed."""
        self.stop()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self.close()


def _environment(cards: Sequence[int] | None) -> dict[str, str]:
    # The child runs the same Roost, wherever this one was imported from.
    paths = [str(Path(roost.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    if cards is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, cards))
    return environment


def settings_out(settings: VllmSettings) -> dict[str, object]:
    """Settings as JSON."""
    return asdict(settings) | {"dtype": str(settings.dtype).removeprefix("torch.")}
