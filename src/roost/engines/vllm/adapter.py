"""Everything that Roost asks of vLLM, in vLLM's words. The only module that imports it.

Documented calls of vLLM 0.32: ``LLM`` and its engine's request interface, a weight transfer backend
of our own behind ``WeightTransferEngineFactory`` (docs: training/weight_transfer/base), layerwise
reloading (docs: training/layerwise), ``apply_model``, ``LoRARequest``, sleep and wake. What differs
in another version is changed here, and ``versions.SUPPORTED`` with it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

# In the trainer's process there is no other to talk to; read when the engine is made.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from torch import Tensor, nn

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.port import BLOCK_TOKENS, Finished, Request, VllmSettings, slot_rank
from roost.errors import EngineError
from roost.planner.colocated import BATCH_TOKENS
from roost.sync.digest import tensor_digest
from roost.sync.names import TensorInfo

# What vLLM and what it imports warn of is not for a user of Roost to act on.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm import LLM
    from vllm import SamplingParams as VllmSampling
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.exceptions import VLLMValidationError
    from vllm.lora.request import LoRARequest
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )
    from vllm.sampling_params import RequestOutputKind

BACKEND = "roost_in_process"
_SLOT = 1
"""vLLM's number of the adapter's one slot."""


@dataclass
class _InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on within one process."""


@dataclass
class _Bucket(WeightTransferUpdateInfo):  # type: ignore[misc]
    tensors: list[tuple[str, Tensor]]
    received: list[str] = field(default_factory=list)
    """Names that arrived, noted on the engine's side."""
    written: set[str] = field(default_factory=set)
    """Tensors that the engine says it wrote."""


class InProcessTransfer(WeightTransferEngine[_InitInfo, _Bucket]):  # type: ignore[misc]
    """vLLM's weight transfer, from tensors that lie in this process."""

    init_info_cls = _InitInfo
    update_info_cls = _Bucket

    def init_transfer_engine(self, init_info: _InitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """See ``WeightTransferEngine``."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: _Bucket) -> None:
        """Give a bucket to the model's own loader, which fuses and shards."""
        update_info.received.extend(name for name, _ in update_info.tensors)
        update_info.written.update(self.model.load_weights(iter(update_info.tensors)))

    def finish_weight_update(self) -> None:
        """See ``WeightTransferEngine``."""
        finalize_layerwise_reload(self.model, self.model_config)
        _repack_tied_head(self.model)

    def shutdown(self) -> None:
        """Nothing to release."""


WeightTransferEngineFactory.register_engine(BACKEND, InProcessTransfer)


class VllmAdapter:
    """One vLLM engine in this process."""

    def __init__(self, settings: VllmSettings) -> None:
        self.settings = settings
        with _undisturbed():
            self._llm = LLM(settings.model, **_arguments(settings))
            self._llm.init_weight_transfer_engine({"init_info": {}})
        self._engine = self._llm.llm_engine
        self._adapter: LoRARequest | None = None
        self._ids = count()

    # -- what it holds

    def tensors(self) -> dict[str, TensorInfo]:
        """See ``Port``."""
        found: dict[str, TensorInfo] = self._llm.apply_model(_describe)[0]
        return found

    def fused(self) -> Mapping[str, Sequence[str]]:
        """See ``Port``."""
        table: Mapping[str, Sequence[str]] = self._llm.apply_model(
            lambda model: dict(getattr(model, "packed_modules_mapping", {}))
        )[0]
        return table

    def digests(self, names: Collection[str]) -> dict[str, str]:
        """See ``Port``."""
        found: dict[str, str] = self._llm.apply_model(lambda model: _digests(model, names))[0]
        return found

    def adapter_digests(self) -> dict[str, tuple[str, str]]:
        """See ``Port``."""
        found: dict[str, tuple[str, str]] = self._llm.apply_model(_slot_digests)[0]
        return found

    # -- what it is given

    def start_update(self) -> None:
        """See ``Port``."""
        self._llm.start_weight_update()

    def send(self, tensors: list[tuple[str, Tensor]]) -> tuple[list[str], set[str]]:
        """See ``Port``."""
        received: list[str] = []
        written: set[str] = set()
        info = {"tensors": tensors, "received": received, "written": written}
        self._llm.update_weights({"update_info": info})
        return received, {name.replace(".base_layer.", ".") for name in written}

    def finish_update(self, version: str) -> None:
        """See ``Port``."""
        self._llm.finish_weight_update(version)
        self._llm.reset_prefix_cache()

    def load_adapter(self, folder: Path, version: str) -> None:
        """See ``Port``."""
        self._adapter = LoRARequest("policy", _SLOT, str(folder))
        self._engine.add_lora(LoRARequest("policy", _SLOT, str(folder), load_inplace=True))
        self._llm.update_weight_version(version)
        # Its keys are the adapter's name, which has not changed: they are of the old one.
        self._llm.reset_prefix_cache()

    def version(self) -> str:
        """See ``Port``."""
        label: str = self._llm.get_weight_version()
        return label

    def sleep(self, level: int) -> None:
        """See ``Port``."""
        self._llm.sleep(level=level)

    def wake(self, part: Literal["weights", "kv_cache"]) -> None:
        """See ``Port``."""
        self._llm.wake_up(tags=[part])

    # -- what it computes

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Port``."""
        sampling = VllmSampling(
            max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False, ignore_eos=True
        )
        self._enqueue([token_ids], [sampling])
        while self._engine.has_unfinished_requests():
            for output in self._step():
                if output.finished:
                    rows = output.prompt_logprobs or []
                    pairs = zip(rows[1:], token_ids[1:], strict=True)
                    return [row[token].logprob for row, token in pairs]
        raise EngineError("vLLM ended the probe of a sync without a result")

    def submit(self, requests: Sequence[Request], sampling: SamplingParams) -> list[str]:
        """See ``Port``."""
        prompts = [request.token_ids for request in requests]
        how = [_sampling(sampling, request.seed) for request in requests]
        try:
            return self._enqueue(prompts, how)
        except VLLMValidationError as error:
            raise ValueError(str(error)) from error

    def step(self) -> list[Finished]:
        """See ``Port``."""
        return [_finished(output) for output in self._step() if output.finished]

    def abort(self, request_ids: Sequence[str]) -> None:
        """See ``Port``."""
        self._engine.abort_request(list(request_ids))
        while self._engine.has_unfinished_requests():
            self._step()

    def close(self) -> None:
        """See ``Port``."""
        self._engine.engine_core.shutdown()

    def _step(self) -> list[Any]:
        # On a CPU one small helper of the sampler would be compiled: half a minute, and a C++
        # compiler needed, for a count that nobody asked for.
        eager = self.settings.device == "cpu"
        with torch.compiler.set_stance("force_eager" if eager else "default"):
            outputs: list[Any] = self._engine.step()
        return outputs

    def _enqueue(
        self, prompts: Sequence[Sequence[int]], sampling: Sequence[VllmSampling]
    ) -> list[str]:
        rendered = self._llm.renderer.render_cmpl(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        )
        ids = []
        for prompt, how in zip(rendered, sampling, strict=True):
            ids.append(str(next(self._ids)))
            self._engine.add_request(ids[-1], prompt, how, lora_request=self._adapter)
        return ids


def _sampling(sampling: SamplingParams, seed: int) -> VllmSampling:
    return VllmSampling(
        max_tokens=sampling.max_completion_tokens,
        temperature=sampling.temperature,
        seed=seed,
        logprobs=0,
        stop=list(sampling.stop) or None,
        stop_token_ids=sorted(sampling.stop_token_ids),
        # The stop tokens are those given; the model's own are among them.
        ignore_eos=True,
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _arguments(settings: VllmSettings) -> dict[str, Any]:
    tokenizer = settings.tokenizer
    arguments: dict[str, Any] = {
        "tokenizer": tokenizer,
        "skip_tokenizer_init": tokenizer is None,
        "revision": settings.revision,
        "trust_remote_code": settings.trust_remote_code,
        "dtype": str(settings.dtype).removeprefix("torch."),
        "seed": settings.seed,
        "max_model_len": settings.max_tokens,
        "max_num_seqs": settings.max_sequences,
        "max_num_batched_tokens": max(BATCH_TOKENS, settings.max_sequences),
        "kv_cache_memory_bytes": settings.cache_bytes,
        "block_size": BLOCK_TOKENS[settings.device],
        "logprobs_mode": "processed_logprobs",
        # What to sample with comes from the recipe alone.
        "generation_config": "vllm",
        "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "enforce_eager": settings.device == "cpu",
        "enable_sleep_mode": settings.sleep_level > 0,
    }
    if settings.lora_rank is not None:
        rank = slot_rank(settings.lora_rank)
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    return arguments


def _finished(output: Any) -> Finished:
    completion = output.outputs[0]
    ids = list(completion.token_ids)
    versions = [""] * len(ids)
    for span in completion.weight_versions or []:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    rows = completion.logprobs or []
    return Finished(
        request_id=output.request_id,
        token_ids=ids,
        logprobs=[row[token].logprob for row, token in zip(rows, ids, strict=True)],
        versions=versions,
        stopped=completion.finish_reason == "stop",
    )


def _plain(name: str) -> str:
    return name.replace(".base_layer.", ".")


def _describe(model: nn.Module) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        module: Any = model.get_submodule(name.rpartition(".")[0])
        shape, padding = tuple(parameter.shape), 0
        if _is_packed(module) and name.endswith(".weight"):
            shape = (module.output_size_per_partition, module.input_size_per_partition)
        if isinstance(module, VocabParallelEmbedding):
            padding = shape[0] - module.org_vocab_size
            shape = (module.org_vocab_size, *shape[1:])
        owner = owners.setdefault(id(parameter), _plain(name))
        tied = None if owner == _plain(name) else owner
        found[_plain(name)] = TensorInfo(shape, _dtype(module, parameter), padding, tied)
    return found


def _is_packed(module: Any) -> bool:
    """Whether its weight has been repacked for the CPU's kernels, the parameter left empty."""
    return isinstance(module, (LinearBase, ParallelLMHead)) and hasattr(module, "cpu_linear")


def _dtype(module: Any, parameter: Tensor) -> torch.dtype:
    # The CPU's kernels keep a bias in float32.
    return module.params_dtype if _is_packed(module) else parameter.dtype


def _digests(model: nn.Module, names: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if _plain(name) not in names:
            continue
        module = model.get_submodule(name.rpartition(".")[0])
        packed = _is_packed(module) and name.endswith(".weight")
        held = _read_back(module) if packed else parameter.to(_dtype(module, parameter))
        found[_plain(name)] = tensor_digest(held)
    return found


@torch.no_grad()
def _read_back(module: Any) -> Tensor:
    """The weight ``[out, in]`` of a layer that keeps it in a layout of its own.

    It is asked what it makes of each unit vector: 1 times a weight plus zeros, so exact in any
    precision. This is what the engine computes with, not what it was given.
    """
    width = module.input_size_per_partition
    columns = []
    for start in range(0, width, 512):
        rows = torch.zeros(min(512, width - start), width, dtype=module.params_dtype)
        rows[torch.arange(len(rows)), torch.arange(start, start + len(rows))] = 1.0
        columns.append(module.quant_method.apply(module, rows, None))
    return torch.cat(columns).t().contiguous()


def _repack_tied_head(model: Any) -> None:
    """Layerwise reloading processes a tied matrix for the embedding alone; the head's packed copy
    on a CPU would stay as it was, and so would what is sampled."""
    head: Any = getattr(model, "lm_head", None)
    if _is_packed(head):
        head.quant_method.process_weights_after_loading(head)


def _slot_digests(model: nn.Module) -> dict[str, tuple[str, str]]:
    found = {}
    for name, module in model.named_modules():
        a, b = getattr(module, "lora_a_stacked", None), getattr(module, "lora_b_stacked", None)
        if a is None or b is None:
            continue
        # Fused layers have a slot for each part, in a tuple; embeddings and heads a bare tensor.
        pairs = zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]
        for part, (one, two) in enumerate(pairs):
            found[f"{name}.{part}"] = (tensor_digest(one[0]), tensor_digest(two[0]))
    return found


@contextmanager
def _undisturbed() -> Iterator[None]:
    """vLLM's start seeds the process's generators, and on a CPU replaces ``set_num_threads``."""
    threads, setter = torch.get_num_threads(), torch.set_num_threads
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads = setter
    torch.set_num_threads(threads)
