"""An engine with weights of its own that samples from them, without vLLM: a copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import SamplingParams
from roost.engines.vllm.port import Finished, Request, slot_rank
from roost.model.policy import Policy
from roost.samples import FinishReason, Prompt
from roost.sync.digest import tensor_digest
from roost.sync.trainer_side import adapter_tensors, base_tensors
from support.recorded_port import RecordedPort


class CopiedPort(RecordedPort):
    """Implements ``roost.engines.vllm.port.Port``, with a slot for an adapter too."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(Policy(copy.deepcopy(policy.module)))
        self.held = base_tensors(self.policy)
        self._engine = EmbeddedEngine(self.policy, None, cache_bytes=2**24)
        self._sampling = SamplingParams(1)

    @torch.no_grad()
    def send(self, tensors: list[tuple[str, Tensor]]) -> tuple[list[str], set[str]]:
        self._need("weights")
        for name, tensor in tensors:
            self.held[name].copy_(tensor)
        names = [name for name, _ in tensors]
        return names, set(names)

    @torch.no_grad()
    def load_adapter(self, folder: Path, version: str) -> None:
        self._need("weights")
        brought = load_file(folder / "adapter_model.safetensors")
        for name, parameter in self.policy.trainable_parameters().items():
            tensor = brought.get(name.replace(".default.", "."))
            parameter.zero_() if tensor is None else parameter.copy_(tensor)
        self.label = version

    def adapter_digests(self) -> dict[str, tuple[str, str]]:
        found = {}
        for name, (a, b) in adapter_tensors(self.policy).items():
            more = (slot_rank(len(a)) or len(a)) - len(a)
            pair = F.pad(a, (0, 0, 0, more)), F.pad(b, (0, more))
            found[f"{name}.0"] = (tensor_digest(pair[0]), tensor_digest(pair[1]))
        return found

    def sleep(self, level: int) -> None:
        assert not self.running, "memory taken from a running request"
        self._need("weights", "kv_cache")
        self.mapped.clear()

    def submit(self, requests: Sequence[Request], sampling: SamplingParams) -> list[str]:
        self._sampling = sampling
        return super().submit(requests, sampling)

    def step(self) -> list[Finished]:
        name, request = self.running.popitem()
        prompt = Prompt(0, tuple(request.token_ids), "")
        stream = self._engine.generate([prompt], 1, self._sampling, seed=request.seed, step=0)
        [sample] = stream
        versions = [self.label] * len(sample.token_ids)
        stopped = sample.finish_reason is FinishReason.STOP
        return [Finished(name, sample.token_ids, sample.logprobs, versions, stopped)]
