"""What Roost does inside a vLLM worker, beside the model: receive weights, and say what is held.

An engine has one worker a shard. In one process the worker is in it; a server with tensor
parallelism has each in a process of its own, which is why everything here can be sent to one: these
are plain functions of a module, and what they return is small. With ``adapter``, the only module
that imports vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed.parallel_state import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

from roost.sync.digest import tensor_digest
from roost.sync.names import Piece, TensorInfo, shard_name

BACKEND = "roost_in_process"


@dataclass
class _InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on within one process."""


@dataclass
class _Bucket(WeightTransferUpdateInfo):  # type: ignore[misc]
    tensors: list[tuple[str, Tensor]]


class InProcessTransfer(WeightTransferEngine[_InitInfo, _Bucket]):  # type: ignore[misc]
    """vLLM's weight transfer, from whole tensors that lie in this process."""

    init_info_cls = _InitInfo
    update_info_cls = _Bucket
    received: Sequence[str] = ()
    """Names that the last bucket brought."""
    written: frozenset[str] = frozenset()
    """Tensors of the model that it wrote, as the model's loader says."""

    def init_transfer_engine(self, init_info: _InitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """See ``WeightTransferEngine``."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: _Bucket) -> None:
        """Give a bucket to the model's own loader, which fuses and takes its shard."""
        self.received = [name for name, _ in update_info.tensors]
        written = self.model.load_weights(iter(update_info.tensors))
        self.written = frozenset(_name(name) for name in written)

    def finish_weight_update(self) -> None:
        """See ``WeightTransferEngine``."""
        finalize_layerwise_reload(self.model, self.model_config)
        _repack_tied_head(self.model)

    def shutdown(self) -> None:
        """Nothing to release."""


WeightTransferEngineFactory.register_engine(BACKEND, InProcessTransfer)


class WorkerExtension:
    """Makes a worker in another process import this module, and so know the backend above."""


class LaunchedCpuExecutor(ExecutorWithExternalLauncher):  # type: ignore[misc]
    """vLLM's external launcher on a CPU, with its shards speaking through torch.distributed.

    vLLM would let them speak through shared memory under a name that is made of the address alone,
    ``env://``: the same for every run of a machine, and left behind by one that was killed. It uses
    torch.distributed where the names of the ranks differ, and there waits have deadlines.
    """

    def _distributed_args(self) -> tuple[str, int, int]:
        address, rank, local_rank = super()._distributed_args()
        return f"{address}:{rank}", rank, local_rank


def receipt(worker: Any) -> tuple[Sequence[str], frozenset[str]]:
    """What the last bucket brought to this worker, and what it wrote."""
    transfer = worker.weight_transfer_engine
    return transfer.received, transfer.written


def run_eagerly(worker: Any) -> None:
    """Compile nothing in this process."""
    torch.compiler.set_stance("force_eager")


def shared_memory(worker: Any) -> str:
    """How the names of this worker's shared memory on a CPU begin."""
    return os.environ["VLLM_DIST_IDENT"]


def fused(model: nn.Module) -> dict[str, list[str]]:
    """The model's fused layers."""
    return dict(getattr(model, "packed_modules_mapping", {}))


def describe(model: nn.Module) -> dict[str, TensorInfo]:
    """The tensors of this shard."""
    found: dict[str, TensorInfo] = {}
    owners: dict[int, str] = {}
    for full_name, parameter in model.named_parameters(remove_duplicate=False):
        name = _name(full_name)
        layer, _, kind = full_name.rpartition(".")
        module: Any = model.get_submodule(layer)
        shape, padding = tuple(parameter.shape), 0
        if _is_packed(module) and kind == "weight":
            shape = (module.output_size_per_partition, module.input_size_per_partition)
        if isinstance(module, VocabParallelEmbedding):
            rows = module.shard_indices.num_org_elements
            padding = shape[0] - rows
            shape = (rows, *shape[1:])
        owner = owners.setdefault(id(parameter), name)
        tied = None if owner == name else owner
        pieces = tuple(_pieces(module, kind))
        found[name] = TensorInfo(shape, _dtype(module, parameter), padding, tied, pieces)
    return found


def digests(model: nn.Module, names: Collection[str]) -> dict[str, str]:
    """Digests of what this shard computes with, by some names of ``describe``."""
    found: dict[str, str] = {}
    for full_name, parameter in model.named_parameters(remove_duplicate=False):
        name = _name(full_name)
        if name not in names:
            continue
        module = model.get_submodule(full_name.rpartition(".")[0])
        packed = _is_packed(module) and full_name.endswith(".weight")
        held = _read_back(module) if packed else parameter.to(_dtype(module, parameter))
        found[name] = tensor_digest(held)
    return found


def slot_digests(model: nn.Module) -> dict[str, tuple[str, str]]:
    """Digests of what the adapter's slot holds in this shard, by layer and part."""
    found = {}
    for name, module in model.named_modules():
        a, b = getattr(module, "lora_a_stacked", None), getattr(module, "lora_b_stacked", None)
        if a is None or b is None:
            continue
        # Fused layers have a slot for each part, in a tuple; embeddings and heads a bare tensor.
        pairs = zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]
        for part, (one, two) in enumerate(pairs):
            found[_name(f"{name}.{part}")] = (tensor_digest(one[0]), tensor_digest(two[0]))
    return found


def merged(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all workers of an engine say; the names of their shards differ."""
    return {name: value for answer in answers for name, value in answer.items()}


def _name(name: str) -> str:
    plain = name.replace(".base_layer.", ".")
    if get_tensor_model_parallel_world_size() == 1:
        return plain
    return shard_name(plain, get_tensor_model_parallel_rank())


def _pieces(module: Any, kind: str) -> Iterator[Piece]:
    """What this shard holds of each tensor that a parameter of ``module`` is made of; nothing where
    it holds all. A layer that is divided in another way is refused by its shape."""
    if get_tensor_model_parallel_world_size() == 1:
        return
    rank = get_tensor_model_parallel_rank()
    if isinstance(module, VocabParallelEmbedding):
        held = module.shard_indices
        yield Piece(0, held.org_vocab_start_index, held.num_org_elements)
    elif isinstance(module, QKVParallelLinear):
        # With fewer heads of keys and values than shards, some shards hold the same head.
        group = rank // module.num_kv_head_replicas
        q, k = module.num_heads * module.head_size, module.num_kv_heads * module.head_size
        v = module.num_kv_heads * module.v_head_size
        yield from (Piece(0, rank * q, q), Piece(0, group * k, k), Piece(0, group * v, v))
    elif isinstance(module, ColumnParallelLinear):
        for size in module.output_partition_sizes:
            yield Piece(0, rank * size, size)
    elif isinstance(module, RowParallelLinear) and kind == "weight":
        size = module.input_size_per_partition
        yield Piece(1, rank * size, size)


def _is_packed(module: Any) -> bool:
    """Whether its weight has been repacked for the CPU's kernels, the parameter left empty."""
    return isinstance(module, (LinearBase, ParallelLMHead)) and hasattr(module, "cpu_linear")


def _dtype(module: Any, parameter: Tensor) -> torch.dtype:
    # The CPU's kernels keep a bias in float32.
    return module.params_dtype if _is_packed(module) else parameter.dtype


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
