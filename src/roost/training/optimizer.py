"""The optimizer: float32 masters and moments over working weights in any precision.

Working weights in bfloat16 cannot hold small updates: one of 1e-6 on a weight of 0.1 rounds away.
So the optimizer keeps a float32 master of each trained parameter, accumulates gradients in float32,
and writes the rounded master back. A parameter that is float32 already is its own master.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from roost.config import TrainConfig
from roost.errors import ConfigError, RoostError

MAX_NON_FINITE = 3
"""So many updates in a row with a gradient that is not finite end the run."""
CPU_CHUNK = 2**20
"""Elements that a CPU converts at once. torch converts the whole of a tensor before it adds or
compares, and the system clears the pages of a large one anew each time (benchmarks/notes.md)."""


class MasterOptimizer:
    """AdamW on float32 masters of the trained parameters.

    Args:
        parameters: Trained parameters by name, in the precision that the model computes in.
        config: ``train``.

    Raises:
        ConfigError: 8-bit moments are asked for and cannot be had.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: TrainConfig) -> None:
        self._parameters = dict(parameters)
        self._config = config
        self._masters = {name: _master_of(p) for name, p in self._parameters.items()}
        for name, parameter in self._parameters.items():
            master = self._masters[name]
            master.grad = torch.zeros_like(master)
            if master is not parameter:
                hook: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
                hook(_accumulate_into(master))
        self._optimizer = _build(self._masters, config)
        self.non_finite = 0
        """Updates in a row that were skipped because the gradient was not finite."""

    def zero_grad(self) -> None:
        """Start a new update."""
        for master in self._masters.values():
            assert master.grad is not None
            master.grad.zero_()

    def gradient_of(self, parameter: Tensor) -> Tensor | None:
        """The float32 sum that a parameter's gradient is added to; None if it is not trained."""
        for name, trained in self._parameters.items():
            if trained is parameter:
                return self._masters[name].grad
        return None

    def gradients(self) -> dict[str, Tensor]:
        """The accumulated float32 gradients, by name."""
        return {name: m.grad for name, m in self._masters.items() if m.grad is not None}

    def step(self, learning_rate: float) -> dict[str, float]:
        """Clip, update the masters, and write them back to the working weights.

        Args:
            learning_rate: Of this step.

        Returns:
            ``grad_norm`` before clipping, and ``weights/changed``, the share of bfloat16 weights
            that the update moved.

        Raises:
            RoostError: the gradient was not finite three times in a row.
        """
        norm = self._clip()
        if not math.isfinite(norm):
            return self._skip(norm)
        self.non_finite = 0
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        return {"grad_norm": norm, **self._write_back()}

    def state_dict(self) -> dict[str, Tensor]:
        """Masters and moments as flat tensors: ``master/NAME``, ``exp_avg/NAME``, ..."""
        state = {f"master/{name}": master.detach() for name, master in self._masters.items()}
        for name, master in self._masters.items():
            for key, value in self._optimizer.state.get(master, {}).items():
                state[f"{key}/{name}"] = torch.as_tensor(value)
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the state that ``state_dict`` gave."""
        for name, master in self._masters.items():
            master.copy_(state[f"master/{name}"])
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if kind != "master":
                slot = self._optimizer.state[self._masters[name]]
                slot[kind] = self._as_held(kind, value, self._masters[name])
        self._write_back()

    def _as_held(self, kind: str, value: Tensor, master: Tensor) -> Any:
        if kind == "step" and self._config.optimizer == "adamw_8bit":
            return int(value)  # bitsandbytes counts in Python
        return value.to(device=_home(kind, master)).clone()

    def _clip(self) -> float:
        masters = list(self._masters.values())
        limit = self._config.max_grad_norm
        if limit > 0:
            return float(nn.utils.clip_grad_norm_(masters, limit))
        return float(nn.utils.get_total_norm([m.grad for m in masters if m.grad is not None]))

    def _skip(self, norm: float) -> dict[str, float]:
        self.non_finite += 1
        if self.non_finite >= MAX_NON_FINITE:
            raise RoostError(
                f"the gradient was {norm} in {self.non_finite} updates in a row, so training has "
                "diverged. Start a new run with a lower learning rate."
            )
        return {"grad_norm": norm}

    @torch.no_grad()
    def _write_back(self) -> dict[str, float]:
        """Round masters to working weights; the share of lower-precision ones that moved."""
        moved, total = torch.zeros((), dtype=torch.int64), 0
        for name, parameter in self._parameters.items():
            master = self._masters[name]
            if master is parameter:
                continue
            for wide, narrow in zip(_chunks(master), _chunks(parameter), strict=True):
                rounded = wide.to(narrow.dtype)
                # Bits, not numbers: torch compares 16-bit floats a number at a time.
                changed = rounded.view(torch.int16) ^ narrow.view(torch.int16)
                moved = moved.to(changed.device) + torch.count_nonzero(changed)
                narrow.copy_(rounded)
            total += parameter.numel()
        return {"weights/changed": int(moved) / total} if total else {}


def learning_rate(step: int, peak: float, config: TrainConfig) -> float:
    """The rate of step ``step`` of ``config.steps``, from 0.

    Warm-up rises linearly and reaches the peak at ``warmup_steps``; then it is constant, or falls
    to 0 at ``steps`` linearly or as half a cosine.
    """
    warmup = config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return peak
    progress = (step - warmup) / max(1, config.steps - warmup)
    if config.schedule == "linear":
        return peak * (1.0 - progress)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))


def _master_of(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.dtype == torch.float32:
        return parameter
    return nn.Parameter(parameter.detach().float())


def _accumulate_into(master: nn.Parameter) -> Any:
    def hook(parameter: Tensor) -> None:
        assert master.grad is not None
        assert parameter.grad is not None
        add_widened(master.grad, parameter.grad)
        parameter.grad = None

    return hook


def add_widened(total: Tensor, gradient: Tensor) -> None:
    """Add a gradient in any precision to a float32 sum; a sparse one into the rows that it has."""
    if gradient.is_sparse:
        rows, values = gradient._indices()[0], gradient._values()
        total.index_add_(0, rows, values.to(total.dtype))
        return
    for wide, narrow in zip(_chunks(total), _chunks(gradient), strict=True):
        wide.add_(narrow.to(wide.dtype) if wide.device.type == "cpu" else narrow)


def _chunks(tensor: Tensor) -> Iterable[Tensor]:
    """Views of a tensor that are converted one at a time; on a GPU the whole."""
    flat = tensor.detach().reshape(-1)
    return flat.split(CPU_CHUNK) if flat.device.type == "cpu" else (flat,)  # type: ignore[no-untyped-call]


def _home(kind: str, master: Tensor) -> torch.device:
    # AdamW counts its steps on the CPU unless fused; fused keeps the count beside the weights.
    return torch.device("cpu") if kind == "step" and not master.is_cuda else master.device


def _build(masters: Mapping[str, nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    matrices = [m for m in masters.values() if m.dim() >= 2]
    others = [m for m in masters.values() if m.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    options: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.adam_beta1, config.adam_beta2),
        "eps": config.adam_epsilon,
    }
    if config.optimizer == "adamw_8bit":
        optimizer: torch.optim.Optimizer = import_module("bitsandbytes").optim.AdamW8bit(
            groups, **options
        )
        return optimizer
    return torch.optim.AdamW(groups, fused=True, **options)


def check_optimizer(config: TrainConfig, device: torch.device) -> None:
    """Say before weights are loaded that an optimizer cannot be had here.

    Raises:
        ConfigError: ``adamw_8bit`` without bitsandbytes or without a GPU.
    """
    if config.optimizer != "adamw_8bit":
        return
    if find_spec("bitsandbytes") is None:
        raise ConfigError(
            "train.optimizer = 'adamw_8bit' needs bitsandbytes: pip install 'roost[bitsandbytes]'."
        )
    if device.type != "cuda":
        raise ConfigError("train.optimizer = 'adamw_8bit' needs a GPU; use 'adamw' on a CPU.")
