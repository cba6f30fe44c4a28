"""One engine and its single thread: requests of any number of connections, one after the other.

Invariant: only the thread in ``run`` touches the engine. Others leave a call with a deadline in a
queue and wait for its answer. Weights are of no version from the moment that an update begins, or
another trainer attaches, until an update has ended; until then nothing is sampled.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from roost.engines.vllm.port import Port, Request, VllmSettings
from roost.engines.vllm.server import wire
from roost.errors import EngineError
from roost.sync.held_folder import HeldFolder
from roost.sync.transports import read_shared, remove_buckets, unpack

POLL_S = 1.0
"""Seconds that ``poll`` waits for a completion before it says that there is none yet."""


class Conflict(EngineError):
    """Asked of weights that the server does not hold, or by a trainer that it no longer serves."""


@dataclass(frozen=True, slots=True)
class _Call:
    session: str
    function: Callable[[], dict[str, Any]]
    answer: Future[dict[str, Any]]
    attaches: bool


class Service:
    """Owns the engine, the version of its weights, and whose requests run.

    Args:
        port: The engine.
        settings: What it was started with.
        folder: Where a trainer on this machine may put a bucket; closed with the engine.
    """

    def __init__(self, port: Port, settings: VllmSettings, folder: HeldFolder) -> None:
        self._folder = folder
        self._port = port
        self._settings = settings
        # Its ``put`` may be called by a signal handler while ``get`` waits.
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._id = secrets.token_hex(8)
        self._session: str | None = None
        self._version: str | None = None
        self._running: dict[str, str] = {}
        self._finished: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._busy_since: float | None = None
        self._failed = False

    # -- for any thread

    def call(self, session: str, name: str, message: dict[str, Any], data: bytearray) -> Any:
        """Have a call carried out by the engine's thread, and wait.

        Raises:
            Conflict: the trainer is not the one that is served, or names another version.
            EngineError: what was asked is not possible.
            TimeoutError: the engine did not come to it within the deadline that the message names.
        """
        if name == "poll":
            return self._poll(session)
        if name == "hello":
            return {"id": self._id}
        handler = getattr(self, f"_do_{name}", None)
        if handler is None:
            raise EngineError(f"no such call: {name}")
        answer: Future[dict[str, Any]] = Future()
        if name == "attach":
            self._calls.put(_Call(session, lambda: self._do_attach(session), answer, True))
        else:
            self._calls.put(_Call(session, lambda: handler(message, data), answer, False))
        return answer.result(timeout=float(message.get("deadline_s", 60.0)))

    def stop(self) -> None:
        """End ``run``."""
        self._calls.put(None)

    def fail(self) -> None:
        """End ``run`` since a part of the engine has died, which an idle one would not notice."""
        self._failed = True
        self.stop()

    def _poll(self, session: str) -> dict[str, Any]:
        with self._news:
            self._check_session(session)
            if not self._finished:
                self._news.wait(POLL_S)
            self._check_session(session)
            taken, self._finished = self._finished, []
        since = self._busy_since
        return {"finished": taken, "busy_s": 0.0 if since is None else time.monotonic() - since}

    # -- the engine's thread

    def run(self) -> None:
        """Serve until ``stop``. An error of the engine itself ends it, and so the process."""
        try:
            while self._serve_calls():
                if self._running:
                    self._step()
            if self._failed:
                raise EngineError("a process of the engine's shards ended, and so the server ends")
        finally:
            self._port.close()
            self._folder.close()

    def _serve_calls(self) -> bool:
        """Carry out what waits; with nothing to decode, wait for a call first."""
        block = not self._running
        while block or not self._calls.empty():
            call = self._calls.get()
            if call is None:
                return False
            self._carry_out(call)
            block = not self._running
        return True

    def _carry_out(self, call: _Call) -> None:
        self._busy_since = time.monotonic()
        try:
            if not call.attaches:
                self._check_session(call.session)
            call.answer.set_result(call.function())
        except (EngineError, ValueError, KeyError, TypeError) as error:
            # Of this request alone: what vLLM refuses is a ValueError.
            call.answer.set_exception(error)
        except BaseException as error:
            call.answer.set_exception(EngineError(f"the engine failed: {error!r}"))
            raise
        finally:
            self._busy_since = None

    def _step(self) -> None:
        self._busy_since = time.monotonic()
        done = self._port.step()
        self._busy_since = None
        if done:
            found = []
            for finished in done:
                answer = wire.finished_out(finished)
                answer["request_id"] = self._running.pop(finished.request_id)
                found.append(answer)
            self._announce(found)

    def _announce(self, found: list[dict[str, Any]]) -> None:
        with self._news:
            self._finished += found
            self._news.notify_all()

    def _check_session(self, session: str) -> None:
        if session != self._session:
            raise Conflict("another trainer has attached to this server, which serves one")

    # -- calls

    def _do_attach(self, session: str) -> dict[str, Any]:
        self._drop()
        remove_buckets(self._folder.path)
        with self._news:
            self._session, self._version, self._finished = session, None, []
        settings = self._settings
        return {
            "tensors": wire.infos_out(self._port.tensors()),
            "fused": {name: list(parts) for name, parts in self._port.fused().items()},
            "folder": str(self._folder.path),
            "max_tokens": settings.max_tokens,
            "max_sequences": settings.max_sequences,
            "cache_bytes": settings.cache_bytes,
            "lora_rank": settings.lora_rank,
        }

    def _do_digests(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        return {"digests": self._port.digests(message["names"])}

    def _do_adapter_digests(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        return {"digests": self._port.adapter_digests()}

    def _do_start_update(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        self._drop()
        self._version = None
        self._port.start_update()
        return {}

    def _do_send(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        if "file" in message:
            data = read_shared(self._folder.path, message["file"])
        received, written = self._port.send(unpack(message["manifest"], data))
        return {"received": received, "written": sorted(written)}

    def _do_finish_update(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        self._port.finish_update(message["version"])
        self._version = message["version"]
        return {}

    def _do_load_adapter(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        self._drop()
        self._version = None
        folder = self._folder.path / "adapter"
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(message["config"], encoding="utf-8")
        (folder / "adapter_model.safetensors").write_bytes(data)
        self._port.load_adapter(folder, message["version"])
        self._version = message["version"]
        return {}

    def _do_version(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        return {"version": "none" if self._version is None else self._port.version()}

    def _do_score(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        self._drop()
        return {"logprobs": self._port.score(message["token_ids"])}

    def _do_submit(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        if self._version is None or message["version"] != self._version:
            raise Conflict(
                f"asked for weights of version {message['version']}, holds "
                f"{self._version or 'none that are complete'}: sync before sampling"
            )
        sampling = wire.sampling_in(message["sampling"])
        refused: dict[str, str] = {}
        for name, token_ids, seed in message["requests"]:
            try:
                (given,) = self._port.submit([Request(token_ids, seed)], sampling)
            except (ValueError, TypeError) as error:
                refused[name] = str(error)
                continue
            self._running[given] = name
        return {"refused": refused}

    def _do_abort(self, message: dict[str, Any], data: bytearray) -> dict[str, Any]:
        self._drop()
        return {}

    def _drop(self) -> None:
        if self._running:
            self._port.abort(list(self._running))
        self._running.clear()
        with self._news:
            self._finished = []
