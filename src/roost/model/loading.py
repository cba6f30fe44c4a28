"""A model's configuration, tokenizer and weights, with what is wrong said by name.

No code of the model's own runs unless ``model.trust_remote_code`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from roost.config import ModelConfig
from roost.config.schema import SMALL_MODEL_PARAMETERS
from roost.errors import ModelError
from roost.model import attention
from roost.model.outline import lacks_tensors, other_shapes, outline
from roost.model.policy import Policy
from roost.model.source import HUB_ID, ModelSource, find_model, near_folder


def load_model_config(source: ModelSource) -> Any:
    """The transformers configuration of a model.

    Raises:
        ModelError: it cannot be read, or the model is not a decoder-only language model.
    """
    config = _loaded(
        "configuration",
        "model.path",
        source.location,
        lambda: AutoConfig.from_pretrained(source.location, **source.hub_options),
    )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"model.path = '{source.location}' is a {config.model_type} model with an encoder; "
            "Roost trains decoder-only language models. Choose one of those."
        )
    return config


def load_tokenizer(source: ModelSource, override: str | None = None) -> Any:
    """The tokenizer beside the weights, or at ``model.tokenizer``.

    Raises:
        ModelError: there is none, or it has no end-of-sequence token.
    """
    location = override or source.location
    field = "model.tokenizer" if override else "model.path"
    folder = Path(location).expanduser()
    if folder.is_dir() and not _holds_tokenizer(folder):
        raise ModelError(
            f"{field} = '{location}' holds no tokenizer (no tokenizer.json). "
            "Set model.tokenizer to a folder or hub id that has one."
        )
    if not folder.is_dir() and not HUB_ID.match(location):
        near = near_folder(location)
        raise ModelError(
            f"{field} = '{location}': no such folder.{f' Did you mean {near!r}?' if near else ''} "
            "Give a folder with tokenizer.json, or a hub id such as 'Qwen/Qwen3-0.6B'."
        )
    tokenizer = _loaded(
        "tokenizer",
        field,
        location,
        lambda: AutoTokenizer.from_pretrained(
            str(folder) if folder.is_dir() else location, **source.hub_options
        ),
    )
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"{field} = '{location}': its tokenizer names no eos_token, so nothing would stop. Set "
            "eos_token in its tokenizer_config.json."
        )
    return tokenizer


def _holds_tokenizer(folder: Path) -> bool:
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
    return any((folder / name).exists() for name in names)


def context_length(config: Any) -> int:
    """Most positions that a model was made for."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or 2**31 - 1)


def choose_dtype(config: ModelConfig, parameters: int) -> torch.dtype:
    """Working precision: as asked, or by the size of the model."""
    if config.dtype == "auto":
        return torch.float32 if parameters < SMALL_MODEL_PARAMETERS else torch.bfloat16
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def choose_device(config: ModelConfig) -> torch.device:
    """The device asked for.

    Raises:
        ModelError: ``cuda`` is asked for and there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            "model.device = 'cuda': torch finds no GPU here. Use model.device = 'cpu', or install "
            "a CUDA build of torch."
        )
    wanted = "cuda" if config.device == "auto" and torch.cuda.is_available() else config.device
    return torch.device("cpu" if wanted == "auto" else wanted)


def load_module(source: ModelSource, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The model with its weights, set up for Roost's attention, in evaluation mode.

    Raises:
        ModelError: weights are missing, of another shape, or not finite.
    """
    attention.register()
    module, info = _loaded(
        "weights",
        "model.path",
        source.location,
        lambda: AutoModelForCausalLM.from_pretrained(
            source.location,
            config=config,
            dtype=dtype,
            attn_implementation=attention.NAME,
            use_safetensors=True,
            output_loading_info=True,
            # Mismatches are reported by name below; transformers' own error does not name them.
            ignore_mismatched_sizes=True,
            **source.hub_options,
        ),
    )
    _check_complete(source.location, info)
    _check_finite(source.location, module)
    module.to(device)
    module.eval()
    return module


def load_policy(config: ModelConfig) -> tuple[Policy, Any]:
    """The policy without an adapter, and its tokenizer."""
    source = find_model(config)
    tokenizer = load_tokenizer(source, config.tokenizer)
    shape = load_model_config(source)
    parameters = sum(p.numel() for p in outline(source, shape).parameters())
    dtype = choose_dtype(config, parameters)
    return Policy(load_module(source, shape, dtype, choose_device(config))), tokenizer


def _check_complete(location: str, info: dict[str, Any]) -> None:
    """What ``outline.check_weights`` cannot tell: tensors that transformers renames or joins."""
    missing = sorted(info["missing_keys"])
    if missing:
        raise lacks_tensors(location, missing)
    mismatched = sorted(info["mismatched_keys"])
    if mismatched:
        name, found, wanted = mismatched[0]
        raise other_shapes(location, len(mismatched), name, found, wanted)


def _check_finite(location: str, module: nn.Module) -> None:
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                f"model.path = '{location}': its weights hold NaN or infinity, in {name!r}. "
                "Download the model again, or go back to one from before its training diverged."
            )


def _loaded(what: str, field: str, location: str, load: Callable[[], Any]) -> Any:
    """Run a transformers loader and turn its many failures into one error that says what to do."""
    try:
        with quiet_transformers():
            return load()
    # Loaders raise whatever their parsers, or a model's own code, stumbled over.
    except Exception as error:
        reason = _reason(error)
        if "custom code" in reason:
            raise _own_code(field, location) from error
        raise ModelError(
            f"{field} = '{location}': its {what} cannot be loaded: {reason}. {_hint(location)}"
        ) from error


def _reason(error: Exception) -> str:
    """The first line of what a library says, and the next where the first only introduces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    count = 2 if lines and lines[0].endswith(":") else 1
    return " ".join(lines[:count])[:400].rstrip(".") or type(error).__name__


def _own_code(field: str, location: str) -> ModelError:
    return ModelError(
        f"{field} = '{location}' comes with Python code of its own, which runs only with "
        "model.trust_remote_code = true. Read the code first: it can do anything that you can."
    )


def _hint(location: str) -> str:
    if Path(location).expanduser().is_dir():
        return "Check that the folder is complete and was saved by save_pretrained."
    near = near_folder(location)
    meant = f" (there is no folder of that name; did you mean {near!r}?)" if near else ""
    return (
        f"Check the id{meant} and the network, or give a local folder; with HF_HUB_OFFLINE=1 only "
        "what is already downloaded is found."
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' loading reports and bars off the screen: errors here say it shorter."""
    before, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        if bars:
            transformers_logging.enable_progress_bar()
