"""A vLLM in another process, behind the same interface as one in this: ``Port`` over HTTP."""

from __future__ import annotations

import http.client
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from torch import Tensor

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.port import Finished, Request
from roost.engines.vllm.server import wire
from roost.engines.vllm.server.addresses import Address
from roost.errors import EngineError
from roost.sync.names import TensorInfo
from roost.sync.transports import pack

CONNECT_S = 5.0
POLL_S = 10.0
"""Seconds for an answer that is always near: whether a completion is done."""
CALL_S = 120.0
"""Seconds for any other call."""


class ServerGone(EngineError):
    """A server did not answer, or broke off. It may come back."""


class RemotePort:
    """Implements ``roost.engines.vllm.port.Port``. For one thread.

    Args:
        address: Of the server.
        call_s: Deadline of a call, seconds.

    Raises:
        ServerGone: it does not answer.
        EngineError: it refuses this trainer.
    """

    def __init__(self, address: Address, *, call_s: float = CALL_S) -> None:
        self.address = address
        self._call_s = call_s
        self._session = secrets.token_hex(8)
        self._ids = 0
        self._label = "none"
        parts = urlsplit(address.url)
        self._connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=CONNECT_S
        )
        try:
            about = self._call("attach")
        except EngineError:
            self._connection.close()
            raise
        self._tensors = wire.infos_in(about["tensors"])
        self._fused: dict[str, list[str]] = about["fused"]
        self._folder = _shared(Path(about["folder"]))
        self.max_tokens: int = about["max_tokens"]
        """Of one sequence."""
        self.max_sequences: int = about["max_sequences"]
        """That it decodes at once."""
        self.cache_bytes: int = about["cache_bytes"]
        self.lora_rank: int | None = about["lora_rank"]
        self.refused: dict[str, str] = {}
        """By request, why the last ``submit`` did not take it."""

    def tensors(self) -> dict[str, TensorInfo]:
        """See ``Port``."""
        return self._tensors

    def fused(self) -> Mapping[str, Sequence[str]]:
        """See ``Port``."""
        return self._fused

    def digests(self, names: Collection[str]) -> dict[str, str]:
        """See ``Port``."""
        found: dict[str, str] = self._call("digests", {"names": list(names)})["digests"]
        return found

    def adapter_digests(self) -> dict[str, tuple[str, str]]:
        """See ``Port``."""
        found = self._call("adapter_digests")["digests"]
        return {name: (a, b) for name, (a, b) in found.items()}

    def start_update(self) -> None:
        """See ``Port``."""
        self._call("start_update")

    def send(self, tensors: list[tuple[str, Tensor]]) -> tuple[list[str], set[str]]:
        """See ``Port``. Through memory that both see where there is such, else with the call."""
        manifest, data = pack(tensors)
        if self._folder is None:
            answer = self._call("send", {"manifest": manifest}, data)
        else:
            file = self._folder / f"bucket-{secrets.token_hex(8)}"
            try:
                file.write_bytes(data)
                answer = self._call("send", {"manifest": manifest, "file": file.name})
            except OSError as error:
                raise ServerGone(f"{self}: its folder {self._folder} is gone: {error}") from error
            finally:
                file.unlink(missing_ok=True)
        return answer["received"], set(answer["written"])

    def finish_update(self, version: str) -> None:
        """See ``Port``."""
        self._call("finish_update", {"version": version})
        self._label = version

    def load_adapter(self, folder: Path, version: str) -> None:
        """See ``Port``."""
        config = (folder / "adapter_config.json").read_text(encoding="utf-8")
        data = (folder / "adapter_model.safetensors").read_bytes()
        self._call("load_adapter", {"config": config, "version": version}, data)
        self._label = version

    def version(self) -> str:
        """See ``Port``."""
        label: str = self._call("version")["version"]
        return label

    def sleep(self, level: int) -> None:
        """A server has cards of its own."""
        raise EngineError("a vLLM server does not sleep; leave rollout.sleep out")

    def wake(self, part: Literal["weights", "kv_cache"]) -> None:
        """A server has cards of its own."""
        raise EngineError("a vLLM server does not sleep; leave rollout.sleep out")

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Port``."""
        values: list[float] = self._call("score", {"token_ids": list(token_ids)})["logprobs"]
        return values

    def next_ids(self, count: int) -> list[str]:
        """What ``submit`` will call its next requests."""
        return [str(self._ids + i) for i in range(count)]

    def submit(self, requests: Sequence[Request], sampling: SamplingParams) -> list[str]:
        """See ``Port``. What the server refuses is in ``refused``, and never finishes."""
        ids = self.next_ids(len(requests))
        self._ids += len(ids)
        rows = [(i, list(r.token_ids), r.seed) for i, r in zip(ids, requests, strict=True)]
        given = {
            "version": self._label,
            "requests": rows,
            "sampling": wire.sampling_out(sampling),
        }
        self.refused = self._call("submit", given)["refused"]
        return ids

    def step(self) -> list[Finished]:
        """Wait a moment for completions; see ``Port``.

        Raises:
            ServerGone: the server answers, but its engine has been at one step for too long.
        """
        answer = self._call("poll", seconds=POLL_S)
        if answer["busy_s"] > self._call_s:
            raise ServerGone(f"{self}: its engine has not moved for {answer['busy_s']:.0f} s")
        return [wire.finished_in(one) for one in answer["finished"]]

    def abort(self, request_ids: Sequence[str]) -> None:
        """Give up all that runs; see ``Port``."""
        self._call("abort")

    def close(self) -> None:
        """Leave the server; it goes on."""
        self._connection.close()

    def __str__(self) -> str:
        return f"the vLLM server {self.address.url}"

    def _call(
        self,
        name: str,
        message: dict[str, Any] | None = None,
        data: bytes | bytearray = b"",
        *,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        seconds = seconds or self._call_s
        body = wire.encode({"deadline_s": seconds, **(message or {})}, data)
        status, answer = self._exchange(name, body, seconds)
        if status == 200:
            return answer
        error = f"{self}: {name}: {answer.get('error', f'status {status}')}"
        if status == 401:
            raise EngineError(f"{error}. Name the server's secret with rollout.token_file.")
        raise (ServerGone if status >= 500 else EngineError)(error)

    def _exchange(self, name: str, body: bytes, seconds: float) -> tuple[int, dict[str, Any]]:
        headers = wire.headers(self._session, self.address.token)
        try:
            if self._connection.sock is None:
                self._connection.timeout = CONNECT_S
                self._connection.connect()
            # A little longer than the server waits for its engine, so that the server says so.
            self._connection.sock.settimeout(seconds + 5.0)
            self._connection.request("POST", f"/{name}", body, headers)
            response = self._connection.getresponse()
            return response.status, wire.decode(response.read())[0]
        except TimeoutError as error:
            self._connection.close()
            raise ServerGone(f"{self} did not answer {name} within {seconds:.0f} s") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ServerGone(f"{self} broke off at {name}: {error!r}") from error


def _shared(folder: Path) -> Path | None:
    """The server's folder, where this process may write there: then both are on one machine."""
    try:
        probe = folder / f"bucket-{secrets.token_hex(8)}"
        probe.touch()
        probe.unlink()
    except OSError:
        return None
    return folder
