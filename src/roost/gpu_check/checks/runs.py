"""Whole runs: resumed ones against one that was not stopped, and their peaks against the plan."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from roost.gpu_check.models import device_of, real_model
from roost.gpu_check.results import Found, Place, require
from roost.model.source import tiny_model_folder
from roost.run.api import train
from roost.run.folder import RunFolder
from roost.run.metrics import read_metrics

RESUMED_OFF = 1e-3
"""Relative difference that a GPU's unordered sums may bring into a resumed run's weights; a CPU
must give the same bits."""
PEAK_OFF = 0.10
"""Difference of a phase's measured and planned peak, as a share of the plan."""
SMALL_PEAK_OFF = 0.30
"""The same of a process on a CPU, where libraries' own pages count and the model is tiny."""


def resume(place: Place) -> Found:
    """Law 7 on the shipped model: two steps, then two more, against four."""
    device = device_of(place)
    whole, parts = place.path / "whole", place.path / "parts"
    _train_tiny(whole, steps=4)
    _train_tiny(parts, steps=2)
    train(resume=parts, quiet=True, train={"steps": 4})
    wanted, found = _weights(RunFolder(whole).final), _weights(RunFolder(parts).final)
    require(wanted.keys() == found.keys(), "the final models hold other tensors")
    before = _weights(tiny_model_folder())
    learnt = _norm({name: wanted[name] - before[name] for name in wanted})
    off = _norm({name: wanted[name] - found[name] for name in wanted}) / learnt
    limit = RESUMED_OFF if device.type == "cuda" else 0.0
    require(off <= limit, f"the resumed run ends {off:.2g} of what it learnt away, not {limit}")
    steps = [row["step"] for row in read_metrics(RunFolder(parts).metrics)]
    require(steps == [1, 2, 3, 4], f"its metrics are of steps {steps}")
    same = "bit for bit" if off == 0 else f"{off:.1g} of what was learnt apart"
    return Found(f"2 + 2 steps end as 4 do, {same}", {"off": off})


def _train_tiny(folder: Path, *, steps: int) -> None:
    train(
        quiet=True,
        data={"source": "arithmetic", "prompts_per_step": 4},
        rollout={"generations": 4, "max_completion_tokens": 8},
        train={"steps": steps, "learning_rate": 1e-3, "schedule": "constant"},
        eval={"prompts": 0},
        rewards={"functions": ["numeric"], "workers": 1},
        output={"folder": str(folder)},
    )


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _norm(tensors: Mapping[str, torch.Tensor]) -> float:
    return math.sqrt(sum(float(t.double().pow(2).sum()) for t in tensors.values()))


def plan_memory(place: Place) -> Found:
    """Law 10: full training of one model and an adapter on a larger one, three steps each."""
    device = device_of(place)
    limit = PEAK_OFF if device.type == "cuda" else SMALL_PEAK_OFF
    figures: dict[str, float] = {}
    cases = [("Qwen3-0.6B", "full"), ("Qwen3-1.7B", "lora")]
    for model, method in cases[:1] if place.small else cases:
        for row in _ledger(place, model, method):
            if row["planned_bytes"] is None:
                continue
            off = row["measured_bytes"] / row["planned_bytes"] - 1
            figures[f"{model} {method} {row['phase']}"] = off
    told = ", ".join(f"{name} {off:+.1%}" for name, off in figures.items())
    wrong = [name for name, off in figures.items() if abs(off) > limit]
    require(not wrong, f"measured over planned: {told}; the band is {limit:.0%}")
    return Found(f"measured over planned: {told}", figures)


def _ledger(place: Place, model: str, method: str) -> list[dict[str, Any]]:
    """Planned and measured bytes of a short run of completions to their full budget."""
    folder = place.path / f"run-{model}-{method}"
    tokens = 16 if place.small else 256
    train(
        quiet=True,
        model=str(real_model(model, place)),
        data={"source": "arithmetic", "prompts_per_step": 2 if place.small else 16},
        rollout={"generations": 4 if place.small else 8, "max_completion_tokens": tokens},
        rewards=[_length],
        train={"steps": 3, "method": method, "learning_rate": 1e-6},
        eval={"prompts": 0},
        output={"folder": str(folder)},
    )
    rows: list[dict[str, Any]] = json.loads(RunFolder(folder).ledger.read_text())
    return rows


def _length(completions: Sequence[str], **columns: Any) -> list[float]:
    """Tells nearly all completions apart, so that all are trained on."""
    return [zlib.crc32(text.encode()) % 1000 / 1000 for text in completions]
