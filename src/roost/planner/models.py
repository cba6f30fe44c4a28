"""Finds the shape of a model: a folder, a config.json, a known name, or a hub id."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from roost.errors import ModelError, did_you_mean
from roost.planner.model_config import shape_from_config
from roost.planner.model_shape import ModelShape

TUNED = re.compile(r"[-_ ](instruct|chat|base|it|pt|hf|bnb[-_ ]4bit|fp8|2507)$")
"""Endings that name a tuning of the same shape."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with the place that its shape was read from."""

    name: str
    shape: ModelShape
    source: str
    stored: str = "bfloat16"
    """How its checkpoint stores the experts: ``mxfp4`` in gpt-oss."""


def known_models() -> list[str]:
    """Names of the built-in shapes."""
    return list(_data())


def find_shape(model: str) -> KnownModel:
    """The shape of a model.

    Args:
        model: A folder or config.json, a built-in name in any case and with or without its
            organisation and ``-Instruct``, ``tiny``, or an id that a hub's cache or a hub has.

    Raises:
        ModelError: nothing of that name is found, or its config cannot be planned.
    """
    path = Path(model)
    if path.is_dir() or path.suffix == ".json":
        return _from_file(path)
    if model == "tiny":
        return _from_file(Path(str(resources.files("roost") / "assets" / "tiny")), name="tiny")
    name = _names().get(_key(model))
    if name is not None:
        return _built_in(name)
    if "/" in model:
        return _from_hub(model)
    raise ModelError(
        f"model {model!r} is neither a folder, a config.json nor a known name."
        f"{did_you_mean(model, known_models())} Give a folder that holds a config.json, or a "
        "hub id such as 'Qwen/Qwen3-8B'."
    )


def built_in_config(name: str) -> dict[str, Any]:
    """The config.json of a built-in shape, as far as its shape needs.

    Raises:
        KeyError: no built-in shape has exactly this name.
    """
    return dict(_data()[name]["config"])


def from_config(config: Mapping[str, Any], name: str, source: str) -> KnownModel:
    """A model from the contents of its config.json."""
    stored = str((config.get("quantization_config") or {}).get("quant_method", "bfloat16"))
    return KnownModel(name, shape_from_config(config), source, stored)


@cache
def _data() -> dict[str, Any]:
    text = (resources.files("roost.planner") / "data" / "models.json").read_text("utf-8")
    models: dict[str, Any] = json.loads(text)["models"]
    return models


@cache
def _names() -> dict[str, str]:
    return {
        _key(alias): name for name, entry in _data().items() for alias in (name, *entry["aliases"])
    }


def _key(name: str) -> str:
    """A name without organisation, case, separators and tuning."""
    short = name.rsplit("/", 1)[-1].lower()
    while TUNED.search(short):
        short = TUNED.sub("", short)
    return re.sub(r"[-_ .]", "", short)


def _built_in(name: str) -> KnownModel:
    entry = _data()[name]
    return from_config(entry["config"], name, entry["source"])


def _from_file(path: Path, name: str | None = None) -> KnownModel:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {str(file)!r}: {error.strerror}.") from error
    except ValueError as error:
        raise ModelError(f"{str(file)!r} is not JSON: {error}.") from error
    if not isinstance(config, dict):
        raise ModelError(f"{str(file)!r} holds no JSON object.")
    return from_config(config, name or file.resolve().parent.name, str(file))


def _from_hub(model: str) -> KnownModel:
    # Imported here: the hub client takes longer to load than the whole of a plan.
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        file = hf_hub_download(model, "config.json")
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(
            f"model {model!r} is no built-in shape, and its config.json cannot be read from a "
            f"hub ({type(error).__name__}).{did_you_mean(model.rsplit('/', 1)[-1], known_models())}"
            " Give a folder that holds its config.json."
        ) from error
    known = _from_file(Path(file), name=model)
    return KnownModel(model, known.shape, f"https://huggingface.co/{model}", known.stored)
