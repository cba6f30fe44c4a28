"""From a folder or hub id to a policy and its tokenizer, with what is wrong said by name.

Only safetensors weights are read, and no code of the model's own runs unless
``model.trust_remote_code`` says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from roost.config import ModelConfig
from roost.errors import ModelError
from roost.model import attention
from roost.model.policy import Policy

SMALL_MODEL_PARAMETERS = 50_000_000
"""Below this, ``dtype = "auto"`` is float32."""

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model is, before any weight is read."""

    location: str
    """A folder's path, or a hub id."""
    revision: str | None
    local: bool
    trust_remote_code: bool

    @property
    def hub_options(self) -> dict[str, Any]:
        """Keyword arguments for transformers' ``from_pretrained`` calls."""
        options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        if not self.local and self.revision is not None:
            options["revision"] = self.revision
        return options


def find_model(config: ModelConfig) -> ModelSource:
    """Resolve ``model.path``: the shipped tiny model, a folder, or a hub id.

    Raises:
        ModelError: there is no such folder, or it holds no ``config.json``.
    """
    if config.path == "tiny":
        return ModelSource(str(tiny_model_folder()), None, local=True, trust_remote_code=False)
    folder = Path(config.path).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return ModelSource(str(folder), None, True, config.trust_remote_code)
    if _HUB_ID.match(config.path):
        return ModelSource(config.path, config.revision, False, config.trust_remote_code)
    raise ModelError(
        f"model.path = {config.path!r}: no such folder. Give a folder with config.json and "
        "safetensors weights, a hub id such as 'Qwen/Qwen3-0.6B', or 'tiny'."
    )


def tiny_model_folder() -> Path:
    """The folder of the arithmetic model that ships in the package."""
    return Path(str(files("roost") / "assets" / "tiny"))


def _check_folder(folder: Path) -> None:
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise ModelError(
            f"model.path = '{folder}' holds an adapter, not a model. Give the base model's folder, "
            "or merge the adapter into it first."
        )
    if not (folder / "config.json").exists():
        raise ModelError(f"model.path = '{folder}' holds no config.json, so it is not a model.")
    if not any(folder.glob("*.safetensors")):
        others = sorted(p.name for p in folder.glob("*.bin"))
        found = f" It holds {', '.join(others[:3])}: convert them first." if others else ""
        raise ModelError(
            f"model.path = '{folder}' holds no .safetensors weights, the only kind read.{found}"
        )


def load_model_config(source: ModelSource) -> Any:
    """The transformers configuration of a model.

    Raises:
        ModelError: it cannot be read, or the model is not a decoder-only language model.
    """
    config = _from_hub(
        source,
        "configuration",
        lambda: AutoConfig.from_pretrained(source.location, **source.hub_options),
    )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"'{source.location}' is a {config.model_type} model with an encoder; "
            "Roost trains decoder-only language models."
        )
    return config


def load_tokenizer(source: ModelSource, override: str | None = None) -> Any:
    """The tokenizer beside the weights, or at ``model.tokenizer``.

    Raises:
        ModelError: there is none, or it has no end-of-sequence token.
    """
    location = override or source.location
    if Path(location).is_dir() and not _holds_tokenizer(Path(location)):
        field = "model.tokenizer" if override else "model.path"
        raise ModelError(
            f"{field} = '{location}' holds no tokenizer (no tokenizer.json). "
            "Set model.tokenizer to a folder or hub id that has one."
        )
    tokenizer = _from_hub(
        source,
        "tokenizer",
        lambda: AutoTokenizer.from_pretrained(location, **source.hub_options),
    )
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"the tokenizer of '{location}' names no eos_token, so nothing would stop."
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


def count_parameters(config: Any) -> int:
    """Parameters of a model, from its shape alone: nothing is allocated."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


def load_module(source: ModelSource, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The model with its weights, set up for Roost's attention, in evaluation mode.

    Raises:
        ModelError: weights are missing, of another shape, or not finite.
    """
    attention.register()
    module, info = _from_hub(
        source,
        "weights",
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
    dtype = choose_dtype(config, count_parameters(shape))
    return Policy(load_module(source, shape, dtype, choose_device(config))), tokenizer


def fingerprint(source: ModelSource) -> str:
    """A digest that tells one model's files from another's, without reading all of them.

    Covers config.json and, of each weight file, its size and 64 KiB at 16 evenly spaced places.
    A hub id that is not a folder is named by itself and its revision.
    """
    digest = hashlib.sha256()
    folder = Path(source.location)
    if not folder.is_dir():
        digest.update(f"{source.location}@{source.revision}".encode())
        return digest.hexdigest()
    digest.update(
        json.dumps(json.loads((folder / "config.json").read_text()), sort_keys=True).encode()
    )
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for part in range(16):
                file.seek(size * part // 16)
                digest.update(file.read(65536))
    return digest.hexdigest()


def _check_complete(location: str, info: dict[str, Any]) -> None:
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"the weights of '{location}' lack {len(missing)} tensors that its config.json "
            f"asks for, the first {missing[0]!r}: they would be random numbers."
        )
    mismatched = sorted(info["mismatched_keys"])
    if mismatched:
        name, found, wanted = mismatched[0]
        raise ModelError(
            f"{len(mismatched)} weights of '{location}' have another shape than its config.json "
            f"asks for, the first {name!r}: {tuple(found)} instead of {tuple(wanted)}."
        )


def _check_finite(location: str, module: nn.Module) -> None:
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"the weights of '{location}' hold NaN or infinity, in {name!r}.")


def _from_hub(source: ModelSource, what: str, load: Callable[[], Any]) -> Any:
    """Run a transformers loader and turn its many failures into one error that says what to do."""
    try:
        with quiet_transformers():
            return load()
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        cause = str(error).strip().splitlines()
        reason = cause[0] if cause else type(error).__name__
        if source.local:
            hint = "Check that the folder is complete and was saved by save_pretrained."
        else:
            hint = (
                "Check the id and the network, or give a local folder; with HF_HUB_OFFLINE=1 only "
                "what is already downloaded is found."
            )
        raise ModelError(
            f"the {what} of model.path = '{source.location}' cannot be loaded: {reason} {hint}"
        ) from error


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
