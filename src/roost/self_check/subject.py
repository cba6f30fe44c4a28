"""What is checked: a recipe or a run, cut down to a few short samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from roost.config import RunConfig
from roost.config.loading import build_config, load_config, merge
from roost.run import checkpoint
from roost.run.folder import RunFolder, base_dir_of, existing_run
from roost.training.adapters import ADAPTER_WEIGHTS

PROMPTS, GENERATIONS, TOKENS = 2, 4, 32
"""Prompts of a step, completions of each, and their budget, unless the recipe has fewer."""
ROWS = 64
"""Of its data that are read."""
RATE = 1e-3
"""Learning rate of the checks that have one: a mistake of this size shows."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked."""

    config: RunConfig
    """The recipe's model, engine, mode, method and precision; small amounts of data."""
    base_dir: Path
    run: RunFolder | None = None
    """The run whose weights are checked; None takes those that the recipe starts from. Only
    read."""


def subject_of(target: Path, overrides: Sequence[str]) -> Subject:
    """A recipe, or a run with its newest checkpoint or what it ended with.

    Args:
        target: Its path.
        overrides: ``section.field=value``.

    Raises:
        RoostError: it is neither, or a field is wrong.
    """
    if not target.is_dir():
        return Subject(small(load_config(target, overrides)), target.parent)
    run = existing_run(target, "RUN_OR_RECIPE =")
    config = load_config(run.config, overrides)
    if not checkpoint.steps(run.checkpoints) and config.train.method == "full":
        config = build_config(merge(config.model_dump(), _final_model(run)))
    return Subject(small(config), base_dir_of(run), run)


def small(config: RunConfig) -> RunConfig:
    """The run with little to do and nothing to move a weight but the gradient of its rewards: no
    weight decay, no divergence from the starting model. Each step samples and trains in turn."""
    data, rollout, train = config.data, config.rollout, config.train
    prompts = min(data.prompts_per_step, max(PROMPTS, train.updates_per_batch))
    rows = max(ROWS, prompts)
    sections = {
        "data": {"prompts_per_step": prompts, "limit": min(data.limit or rows, rows)},
        "rollout": {
            "generations": min(rollout.generations, GENERATIONS),
            "max_completion_tokens": min(rollout.max_completion_tokens, TOKENS),
            "staleness": 0,
        },
        "rewards": {"workers": 1},
        # Completions so short are cut off, and would all be left out.
        "loss": {"beta": 0.0, "mask_truncated": False},
        # What engine and trainer differ by is measured here, and must not take the gradient away.
        "correction": {"mode": "off"},
        "train": {
            "steps": 2,
            "learning_rate": RATE,
            "schedule": "constant",
            "warmup_steps": 0,
            "weight_decay": 0.0,
        },
        "lora": {"learning_rate": None},
        "eval": {"prompts": 0},
        "output": {"folder": None, "trackers": [], "samples_every": 0},
    }
    return build_config(merge(config.model_dump(), sections))


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """Trained weights of a run."""

    tensors: Mapping[str, Tensor]
    """By the names of the module's parameters, or those that peft writes."""
    version: int
    """The policy's."""
    origin: str
    """For a person."""


def saved_weights(subject: Subject, fingerprint: str) -> SavedWeights | None:
    """The weights of the run's newest checkpoint, or the adapter that it ended with; None where
    the model's own files hold what is checked.

    Args:
        subject: What is checked.
        fingerprint: Of the model's files.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another model.
    """
    run = subject.run
    if run is None:
        return None
    if checkpoint.steps(run.checkpoints):
        point = checkpoint.load(run.checkpoints)
        checkpoint.check_inputs(point, model=fingerprint)
        version: int = point.state["policy_version"]
        return SavedWeights(point.weights, version, f"the checkpoint after step {point.step}")
    adapter = run.final / ADAPTER_WEIGHTS
    if subject.config.train.method == "full" or not adapter.is_file():
        return None
    return SavedWeights(load_file(adapter), 0, f"the adapter in {run.final}")


def _final_model(run: RunFolder) -> dict[str, Any]:
    if not (run.final / "config.json").is_file():
        return {}
    return {"model": {"path": str(run.final.resolve()), "revision": None, "tokenizer": None}}
