"""Everything that Roost asks of vLLM, in vLLM's words. With ``worker_side``, the only module that
imports it.

Documented calls of vLLM 0.32: ``LLM`` and its engine's request interface, a weight transfer backend
of our own behind ``WeightTransferEngineFactory`` (docs: training/weight_transfer/base), layerwise
reloading (docs: training/layerwise), ``apply_model``, ``collective_rpc``, the external launcher,
``LoRARequest``, sleep and wake. What differs in another version is changed here and in
``worker_side``, and ``versions.SUPPORTED`` with it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

# In the trainer's process there is no other to talk to; read when the engine is made.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from torch import Tensor

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.port import BLOCK_TOKENS, Finished, Request, VllmSettings, slot_rank
from roost.errors import EngineError
from roost.planner.colocated import BATCH_TOKENS
from roost.sync.names import TensorInfo

# What vLLM and what it imports warn of is not for a user of Roost to act on.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm import LLM
    from vllm import SamplingParams as VllmSampling
    from vllm.config import WeightTransferConfig
    from vllm.exceptions import VLLMValidationError
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind

    from roost.engines.vllm import worker_side

FREE_SHARE = 0.95
"""Of the memory that is free on a card, what vLLM is told that it may use: it looks again after its
communicators have taken some."""
_SLOT = 1
"""vLLM's number of the adapter's one slot."""


class VllmAdapter:
    """One vLLM engine in this process: all of it, or with ``settings.launched`` one of its shards.

    The shards of a launched engine are as many processes, each with an adapter, which must make the
    same calls in the same order. Otherwise vLLM starts a process for each shard itself.
    """

    def __init__(self, settings: VllmSettings) -> None:
        self.settings = settings
        _set_up(settings)
        with _undisturbed():
            self._llm = LLM(settings.model, **_arguments(settings))
            if _has_workers(settings):
                self._prepare_workers()
            self._llm.init_weight_transfer_engine({"init_info": {}})
        self._engine = self._llm.llm_engine
        self._adapter: LoRARequest | None = None
        self._ids = count()

    def _prepare_workers(self) -> None:
        if self.settings.device != "cpu":
            return
        self._llm.collective_rpc(worker_side.run_eagerly)
        # All workers have opened it. vLLM leaves the names behind, even when it ends in order.
        for start in set(self._llm.collective_rpc(worker_side.shared_memory)):
            for file in Path("/dev/shm").glob(f"{start}-*-cpushm*"):
                file.unlink(missing_ok=True)

    # -- what it holds

    def tensors(self) -> dict[str, TensorInfo]:
        """See ``Port``."""
        return worker_side.merged(self._llm.apply_model(worker_side.describe))

    def fused(self) -> Mapping[str, Sequence[str]]:
        """See ``Port``."""
        table: Mapping[str, Sequence[str]] = self._llm.apply_model(worker_side.fused)[0]
        return table

    def digests(self, names: Collection[str]) -> dict[str, str]:
        """See ``Port``."""
        asked = partial(worker_side.digests, names=list(names))
        return worker_side.merged(self._llm.apply_model(asked))

    def adapter_digests(self) -> dict[str, tuple[str, str]]:
        """See ``Port``."""
        return worker_side.merged(self._llm.apply_model(worker_side.slot_digests))

    # -- what it is given

    def start_update(self) -> None:
        """See ``Port``."""
        self._llm.start_weight_update()

    def send(self, tensors: list[tuple[str, Tensor]]) -> tuple[list[str], set[str]]:
        """See ``Port``."""
        self._llm.update_weights({"update_info": {"tensors": tensors}})
        receipts = self._llm.collective_rpc(worker_side.receipt)
        received = list(receipts[0][0])
        if any(list(others) != received for others, _ in receipts):
            raise EngineError("the shards of the engine did not receive the same tensors")
        return received, {name for _, written in receipts for name in written}

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

    def when_a_shard_dies(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called, by another thread, when a process of a shard has ended."""
        self._engine.model_executor.register_failure_callback(tell)

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
        "weight_transfer_config": WeightTransferConfig(backend=worker_side.BACKEND),
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "enforce_eager": settings.device == "cpu",
        "enable_sleep_mode": settings.sleep_level > 0,
        "tensor_parallel_size": settings.tensor_parallel,
        "distributed_executor_backend": _executor(settings),
    }
    if _has_workers(settings):
        arguments["worker_extension_cls"] = f"{worker_side.__name__}.WorkerExtension"
    if settings.device == "cuda":
        # vLLM will not start where less of the card is free than this, although the cache's bytes
        # are given; the trainer holds the rest.
        free, total = torch.cuda.mem_get_info()
        arguments["gpu_memory_utilization"] = FREE_SHARE * free / total
    if settings.lora_rank is not None:
        rank = slot_rank(settings.lora_rank)
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    return arguments


def _executor(settings: VllmSettings) -> Any:
    """Who starts the workers: None leaves it to vLLM, which has one in this process."""
    if settings.launched:
        launcher = worker_side.LaunchedCpuExecutor
        return launcher if settings.device == "cpu" else "external_launcher"
    return "mp" if settings.tensor_parallel > 1 else None


def _has_workers(settings: VllmSettings) -> bool:
    """Whether the shards are in processes that vLLM starts."""
    return settings.tensor_parallel > 1 and not settings.launched


def _set_up(settings: VllmSettings) -> None:
    if settings.launched:
        # Of a call of torch that vLLM makes at each step.
        warnings.filterwarnings("ignore", ".*all_gather_into_tensor", FutureWarning)
    if settings.device == "cpu" and _has_workers(settings):
        # vLLM would bind each worker to a NUMA node of its own, and refuse where there are fewer.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


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


@contextmanager
def _undisturbed() -> Iterator[None]:
    """vLLM's start seeds the process's generators, and on a CPU replaces ``set_num_threads``."""
    threads, setter = torch.get_num_threads(), torch.set_num_threads
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads = setter
    torch.set_num_threads(threads)
