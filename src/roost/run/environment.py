"""environment.json: what a run ran on, enough to tell two machines' runs apart.

A resume on anything that may round otherwise, or with rewards whose code has changed, is said in
one line, and kept under ``resumed``.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from roost import __version__
from roost.rewards.loading import Reward
from roost.run.folder import RunFolder, write_json

_PACKAGES = ("torch", "transformers", "peft", "datasets", "tokenizers", "safetensors", "numpy")


def describe(
    seed: int,
    device: torch.device,
    model_fingerprint: str,
    base_dir: Path,
    rewards: Sequence[Reward] = (),
) -> dict[str, Any]:
    """The contents of environment.json."""
    return {
        "roost": __version__,
        "started": _now(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "seed": seed,
        "device": _device(device),
        "threads": torch.get_num_threads(),
        # The instruction sets that torch found decide its kernels.
        "instructions": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "processor": processor_name(),
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "model_fingerprint": model_fingerprint,
        "rewards": {reward.name: reward.code_digest() for reward in rewards},
        "base_dir": str(base_dir.resolve()),
    }


_ROUNDS = ("roost", "device", "threads", "instructions", "processor")
"""What, beside versions of packages, may alter the last bits of a step."""


_REWARD = "reward "
"""Begins the name of a change in a reward's code."""


def moved(
    folder: RunFolder, device: torch.device, rewards: Sequence[Reward] = ()
) -> dict[str, list[Any]]:
    """What differs from where the run was last: by name, then and now.

    Args:
        folder: A run whose environment.json can be read.
        device: Where it goes on.
        rewards: What it goes on with.
    """
    before = _compared(_read(folder))
    now = _compared(describe(0, device, "", folder.root, rewards))
    # What an older Roost did not write is not known to differ.
    return {n: [before[n], now[n]] for n in now if n in before and before[n] != now[n]}


def moved_lines(changes: Mapping[str, list[Any]]) -> list[str]:
    """For a person.

    >>> moved_lines({"threads": [1, 2]})
    ['resumed elsewhere: threads 1, now 2; last bits may differ from a run that was never stopped']
    >>> moved_lines({"reward digits": ["0a", "0b"]})
    ['resumed with other code of reward digits: what comes now is scored by the new one']
    """
    rewards = [name.removeprefix(_REWARD) for name in changes if name.startswith(_REWARD)]
    places = [
        f"{name} {before}, now {now}"
        for name, (before, now) in changes.items()
        if not name.startswith(_REWARD)
    ]
    lines = []
    if places:
        lines.append(
            f"resumed elsewhere: {', '.join(places)}; last bits may differ from a run that was "
            "never stopped"
        )
    if rewards:
        lines.append(
            f"resumed with other code of reward {', '.join(rewards)}: what comes now is scored by "
            "the new one"
        )
    return lines


def record_move(folder: RunFolder, step: int, changes: Mapping[str, list[Any]]) -> None:
    """Add to environment.json what changed on a resume after ``step``."""
    environment = json.loads(folder.environment.read_text())
    entry = {"after_step": step, "at": _now(), "changed": dict(changes)}
    environment.setdefault("resumed", []).append(entry)
    write_json(folder.environment, environment)


def _read(folder: RunFolder) -> dict[str, Any]:
    """environment.json, as its last resume left it."""
    environment: dict[str, Any] = json.loads(folder.environment.read_text())
    packages = dict(environment.get("packages", {}))
    rewards = dict(environment.get("rewards", {}))
    current = {**environment, "packages": packages, "rewards": rewards}
    for entry in environment.get("resumed", []):
        for name, (_, now) in entry["changed"].items():
            if name.startswith(_REWARD):
                rewards[name.removeprefix(_REWARD)] = now
            else:
                (current if name in _ROUNDS else packages)[name] = now
    return current


def _compared(environment: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: environment[name] for name in _ROUNDS if name in environment}
    rewards = {_REWARD + name: code for name, code in environment.get("rewards", {}).items()}
    return {**known, **environment.get("packages", {}), **rewards}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model, as Linux names it; elsewhere what Python knows."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []  # another system
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
