"""LoRA adapters through peft, set up so that base weights never change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from torch import nn

from roost.config import LoraConfig
from roost.errors import ModelError, did_you_mean

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def add_adapter(model: nn.Module, config: LoraConfig, seed: int) -> Any:
    """A ``PeftModel`` around the model, its base frozen, its adapter in the base's precision.

    The optimizer keeps float32 masters of the adapter. There is no dropout: with it the trainer
    would score other probabilities than the engine sampled from.

    Args:
        model: A transformers causal LM.
        config: ``lora``.
        seed: Of the adapter's initial values.

    Raises:
        ModelError: ``lora.targets`` match no linear layer.
    """
    targets = resolve_targets(model, config.targets)
    peft_config = PeftLoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=targets,
        use_rslora=config.rslora,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = get_peft_model(model, peft_config, autocast_adapter_dtype=False)
    adapted.eval()
    return adapted


def load_adapter(model: nn.Module, folder: Path) -> Any:
    """A ``PeftModel`` around the model, with an adapter that was saved; nothing of it trains.

    Args:
        model: The base model of the adapter.
        folder: What ``save_pretrained`` wrote.

    Raises:
        ModelError: it holds no safetensors weights, or those of another model.
    """
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(
            f"'{folder}' holds no {ADAPTER_WEIGHTS}, the only kind of adapter weights read."
        )
    try:
        adapted = PeftModel.from_pretrained(model, folder, autocast_adapter_dtype=False)
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"the adapter in '{folder}' does not fit its base model: {str(error).splitlines()[0]} "
            "Give the model that it was trained on: --set model.path=..."
        ) from error
    adapted.eval()
    return adapted


def resolve_targets(model: nn.Module, targets: str | list[str]) -> list[str]:
    """Name endings of the linear layers to adapt.

    ``all-linear`` is every ``nn.Linear`` but the output head. Experts of a mixture are fused
    tensors, not linear layers: an adapter on them would build all experts' changed weights anew at
    each forward, so they stay as they are.

    Raises:
        ModelError: a name matches no linear layer; it is named, and so is the nearest that does.
    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    ]
    endings = {name.rpartition(".")[2] for name in linear}
    if targets == "all-linear":
        return sorted(endings)
    wanted = [targets] if isinstance(targets, str) else targets
    for target in wanted:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            raise ModelError(
                f"lora.targets: {target!r} matches no linear layer of the model."
                f"{did_you_mean(target, endings)}"
            )
    return wanted
