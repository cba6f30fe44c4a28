"""An engine with weights of its own that does nothing but note, and refuse what would break one.

It holds real tensors, under the trainer's names without fusion, so that the proofs are the real
ones; and it has memory that can be mapped or not, so that a wrong order of calls is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.port import Finished, Request
from roost.model.policy import Policy
from roost.sync.digest import tensor_digest
from roost.sync.names import TensorInfo
from roost.sync.trainer_side import base_tensors, infos, score


class RecordedPort:
    """Implements ``roost.engines.vllm.port.Port`` for full training."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.calls: list[str] = []
        self.held = {name: torch.zeros_like(t) for name, t in base_tensors(policy).items()}
        self.infos = infos(base_tensors(policy))
        self.label = "default"
        self.mapped = {"weights", "kv_cache"}
        self.running: dict[str, Request] = {}
        self._count = 0

    def tensors(self) -> dict[str, TensorInfo]:
        return self.infos

    def fused(self) -> Mapping[str, Sequence[str]]:
        return {}

    def digests(self, names: Collection[str]) -> dict[str, str]:
        self._need("weights")
        return {name: tensor_digest(self.held[name]) for name in names}

    def adapter_digests(self) -> dict[str, tuple[str, str]]:
        return {}

    def start_update(self) -> None:
        self._need("weights")
        assert not self.running
        self.calls.append("start_update")

    def send(self, tensors: list[tuple[str, Tensor]]) -> tuple[list[str], set[str]]:
        self._need("weights")
        for name, tensor in tensors:
            for other, info in self.infos.items():
                if name in (other, info.tied_to):
                    self.held[other] = tensor.clone()
        return [name for name, _ in tensors], {name for name, _ in tensors}

    def finish_update(self, version: str) -> None:
        self.calls.append(f"finish_update {version}")
        self.label = version

    def load_adapter(self, folder: Path, version: str) -> None:
        raise AssertionError("full training has no adapter")

    def version(self) -> str:
        return self.label

    def sleep(self, level: int) -> None:
        assert not self.running, "memory taken from a running request"
        self._need("weights", "kv_cache")
        self.mapped.clear()
        self.held = {name: torch.zeros_like(t) for name, t in self.held.items()}
        self.calls.append(f"sleep {level}")

    def wake(self, part: str) -> None:
        assert part not in self.mapped
        self.mapped.add(part)
        self.calls.append(f"wake {part}")

    def score(self, token_ids: Sequence[int]) -> list[float]:
        self._need("weights", "kv_cache")
        return score(self.policy, list(token_ids))

    def submit(self, requests: Sequence[Request], sampling: SamplingParams) -> list[str]:
        self._need("weights", "kv_cache")
        ids = [str(self._count + i) for i in range(len(requests))]
        self._count += len(requests)
        self.running.update(zip(ids, requests, strict=True))
        self.calls.append(f"submit {len(requests)}")
        return ids

    def step(self) -> list[Finished]:
        name, request = self.running.popitem()
        token = request.seed % 50
        return [Finished(name, [token], [-1.0], [self.label], stopped=True)]

    def abort(self, request_ids: Sequence[str]) -> None:
        for name in request_ids:
            del self.running[name]
        self.calls.append(f"abort {len(request_ids)}")

    def close(self) -> None:
        self.calls.append("close")

    def _need(self, *parts: str) -> None:
        missing = set(parts) - self.mapped
        assert not missing, f"{missing} used while not mapped"
