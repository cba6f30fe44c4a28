"""Where a model is, and what its files say before any weight is read.

Only safetensors weights are read.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from roost.config import ModelConfig
from roost.errors import ModelError, nearest

HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_INDEX = "model.safetensors.index.json"
_READ_WHOLE = 64 * 2**20
"""Most bytes of a weight file that its fingerprint covers whole."""


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
        ModelError: there is no such folder, or it is not that of a model with safetensors weights.
    """
    if config.path == "tiny":
        return ModelSource(str(tiny_model_folder()), None, local=True, trust_remote_code=False)
    folder = Path(config.path).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        if config.revision is not None:
            raise ModelError(
                f"model.revision = {config.revision!r}: model.path = {config.path!r} is a folder, "
                "which has no revisions. Take one of the two out."
            )
        return ModelSource(str(folder), None, True, config.trust_remote_code)
    if HUB_ID.match(config.path) and not folder.exists() and not _holds_runs(folder.parent):
        return ModelSource(config.path, config.revision, False, config.trust_remote_code)
    what = "is a file, not a folder" if folder.exists() else "no such folder"
    near = near_folder(config.path)
    raise ModelError(
        f"model.path = {config.path!r}: {what}.{f' Did you mean {near!r}?' if near else ''} Give a "
        "folder with config.json and safetensors weights, a hub id such as 'Qwen/Qwen3-0.6B', or "
        "'tiny'."
    )


def tiny_model_folder() -> Path:
    """The folder of the arithmetic model that ships in the package."""
    return Path(str(files("roost") / "assets" / "tiny"))


def _holds_runs(folder: Path) -> bool:
    """Whether there are run folders here: then ``runs/x`` is meant as one, not as a hub id that is
    asked for over the network for half a minute."""
    return any(folder.glob("*/config.toml"))


def near_folder(path: str) -> str | None:
    """A folder beside the one that is not there, or ``tiny``, with nearly its name."""
    parent = Path(path).expanduser().parent
    beside = [p.name for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
    match = nearest(Path(path).name, beside)
    if match is not None:
        return str(Path(path).parent / match)
    return nearest(path.lower(), ["tiny"])


def _check_folder(folder: Path) -> None:
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise ModelError(
            f"model.path = '{folder}' holds an adapter, not a model. Give the base model's folder, "
            "or merge the adapter into it first."
        )
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"model.path = '{folder}' holds no config.json, so it is not a model. Give the folder "
            f"that save_pretrained wrote{_inner_model(folder)}."
        )
    read_json(folder / "config.json")
    if not any(folder.glob("*.safetensors")):
        others = sorted(p.name for p in folder.glob("*.bin"))
        found = (
            f"It holds {', '.join(others[:3])}, pickles that could run code: load them with "
            "transformers and save_pretrained them as safetensors."
            if others
            else "Download or copy them into it."
        )
        raise ModelError(
            f"model.path = '{folder}' holds no .safetensors weights, the only kind read. {found}"
        )


def _inner_model(folder: Path) -> str:
    """A folder within that is a model, as hub caches and run folders have one."""
    found = [*folder.glob("*/config.json"), *folder.glob("*/*/config.json")]
    inner = found[0].parent if found else None
    return f", such as '{inner}'" if inner is not None else ""


def read_json(path: Path) -> dict[str, Any]:
    """The object in one of a model's JSON files.

    Raises:
        ModelError: it cannot be read, or is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise ModelError(
            f"'{path}' is not JSON: {error}. Mend it, or download the model again."
        ) from None
    if not isinstance(value, dict):
        raise ModelError(
            f"'{path}' holds a JSON {type(value).__name__} instead of an object. Download the "
            "model again."
        )
    return value


def weight_shapes(source: ModelSource) -> dict[str, tuple[int, ...]] | None:
    """Names and shapes of the tensors in a local model's files, from their headers alone.

    None for a hub id, whose files are not at hand yet.

    Raises:
        ModelError: a file is cut off or damaged, or one that the index names is not there.
    """
    if not source.local:
        return None
    folder = Path(source.location)
    shapes: dict[str, tuple[int, ...]] = {}
    for path in _weight_files(folder):
        shapes.update(_header(path))
    return shapes


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if (folder / "model.safetensors").is_file() or not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    named = sorted(set(read_json(index).get("weight_map", {}).values()))
    for name in named:
        if not (folder / name).is_file():
            raise ModelError(
                f"model.path = '{folder}' lacks '{name}', one of {len(named)} weight files that "
                f"its {_INDEX} names. Download or copy it as well."
            )
    return [folder / name for name in named]


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"'{path}' ({path.stat().st_size:,} bytes) is cut off or damaged: {error}. Download or "
            "copy it again."
        ) from error


def fingerprint(source: ModelSource) -> str:
    """A digest that tells one model's files from another's, without reading all of large ones.

    Covers config.json and each weight file; of one over 64 MiB, its size and 64 KiB at 16 evenly
    spaced places.
    A hub id that is not a folder is named by itself and its revision.
    """
    digest = hashlib.sha256()
    folder = Path(source.location)
    if not folder.is_dir():
        digest.update(f"{source.location}@{source.revision}".encode())
        return digest.hexdigest()
    digest.update(
        json.dumps(json.loads((folder / "config.json").read_text("utf-8")), sort_keys=True).encode()
    )
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        if size <= _READ_WHOLE:
            digest.update(path.read_bytes())
            continue
        with path.open("rb") as file:
            for part in range(16):
                file.seek(size * part // 16)
                digest.update(file.read(65536))
    return digest.hexdigest()
