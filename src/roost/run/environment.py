"""environment.json: what a run ran on, enough to tell two machines' runs apart."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from roost import __version__

_PACKAGES = ("torch", "transformers", "peft", "datasets", "tokenizers", "safetensors", "numpy")


def describe(
    seed: int, device: torch.device, model_fingerprint: str, base_dir: Path
) -> dict[str, Any]:
    """The contents of environment.json."""
    return {
        "roost": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "seed": seed,
        "device": _device(device),
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "model_fingerprint": model_fingerprint,
        "base_dir": str(base_dir.resolve()),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
