"""What the trainer holds, under the names that checkpoints and engines use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from roost.model.parts import Segment
from roost.model.policy import Policy
from roost.sync.names import TensorInfo
from roost.training.attention import PackLayout
from roost.training.logprobs import token_logprobs

_ADAPTER = ".lora_"


def base_tensors(policy: Policy) -> dict[str, Tensor]:
    """The base model's parameters by checkpoint name, tied ones under each of their names."""
    named = policy.base.named_parameters(remove_duplicate=False)
    return {n.replace(".base_layer.", "."): p for n, p in named if _ADAPTER not in n}


def infos(tensors: dict[str, Tensor]) -> dict[str, TensorInfo]:
    """What they look like; the first name of tied ones owns them."""
    owners: dict[int, str] = {}
    found = {}
    for name, tensor in tensors.items():
        owner = owners.setdefault(id(tensor), name)
        tied = None if owner == name else owner
        found[name] = TensorInfo(tuple(tensor.shape), tensor.dtype, tied_to=tied)
    return found


def adapter_tensors(policy: Policy) -> dict[str, tuple[Tensor, Tensor]]:
    """By adapted module, ``A [rank, in]`` and ``B [out, rank]`` times the adapter's scaling."""
    return {name: (a, (b * scale).to(b.dtype)) for name, a, b, scale in _adapted(policy)}


def adapter_file(policy: Policy) -> dict[str, Tensor]:
    """The adapter by the names that peft writes to disk."""
    tensors = {}
    for name, a, b, _ in _adapted(policy):
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.contiguous()
    return tensors


def _adapted(policy: Policy) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    module: Any
    for name, module in policy.base.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            yield name, a.detach(), b.detach(), float(module.scaling["default"])


@torch.no_grad()
def score(policy: Policy, token_ids: list[int]) -> list[float]:
    """Log-probability of each token but the first, at temperature 1, as the trainer computes it."""
    device, count = policy.device, len(token_ids)
    ids = torch.tensor(token_ids, device=device)
    layout = PackLayout([Segment(0, count)], device)
    hidden = policy.hidden_states(ids, torch.arange(count, device=device), layout)
    logprobs, _ = token_logprobs(hidden[:-1], policy.head, ids[1:])
    values: list[float] = logprobs.tolist()
    return values
