"""Checkpoints: written beside, moved into place, checked when read.

A checkpoint is everything that the next step depends on, so that a run killed anywhere and resumed
ends bit-identical to one that was not: trained weights (float32 masters), optimizer moments, prompt
cursor, policy version, counters. Sampling draws from streams keyed by seed, step, prompt and index,
so no generator state is needed for it.

Layout of ``checkpoints/step-12/``: ``weights.safetensors`` (the trained tensors in working
precision), ``optimizer.safetensors``, ``state.json``, and ``manifest.json`` with the size and
SHA-256 of each file, written last.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from roost.errors import CheckpointError
from roost.run import manifest
from roost.run.folder import write_json

_NAME = re.compile(r"^step-(\d+)$")
_ASIDE = re.compile(r"^\.(step-\d+)\.(part|old|gone)$")
"""Being written; replaced by another of the same step; being removed."""


@dataclass(slots=True)
class Checkpoint:
    """The state after ``step`` steps."""

    step: int
    weights: dict[str, Tensor]
    """Trained tensors in working precision, by the module's names."""
    optimizer: dict[str, Tensor]
    """Masters, moments and their counts, by name."""
    state: dict[str, Any]
    """Everything else, as JSON: cursor, counters, policy version, model fingerprint."""


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint, then remove all but the newest ``keep``.

    Raises:
        CheckpointError: the disk is full or not writable; what was there before is untouched.
    """
    target = folder / f"step-{checkpoint.step}"
    beside = folder / f".step-{checkpoint.step}.part"
    try:
        settle(folder)
        beside.mkdir(parents=True)
        _write_tensors(beside / "weights.safetensors", checkpoint.weights)
        _write_tensors(beside / "optimizer.safetensors", checkpoint.optimizer)
        write_json(beside / "state.json", checkpoint.state)
        write_json(beside / "manifest.json", manifest.make(beside, checkpoint.step))
        _replace(target, beside)
        _sync_folder(folder)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):  # the first error is the one to tell
            settle(folder)
        raise CheckpointError(
            f"checkpoint '{target}' cannot be written: {error}. Earlier checkpoints are untouched; "
            "make room and go on with --resume."
        ) from error
    for old in steps(folder)[:-keep]:
        _remove(folder / f"step-{old}")
    return target


def settle(folder: Path) -> None:
    """Finish or undo what a kill cut short in a folder that nobody else writes.

    A checkpoint that was moved aside comes back where its successor did not arrive; parts and
    what was about to be removed go.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if aside := _ASIDE.match(path.name):
            target = folder / aside[1]
            if aside[2] == "old" and not target.exists():
                path.rename(target)
            else:
                shutil.rmtree(path)


def _replace(target: Path, whole: Path) -> None:
    """Move a whole checkpoint into place. What was there is kept aside until it has arrived."""
    aside = target.with_name(f".{target.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    whole.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def _remove(path: Path) -> None:
    """Under its own name a checkpoint is whole or not there, even while it is removed."""
    gone = path.with_name(f".{path.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    path.rename(gone)
    shutil.rmtree(gone)


def load(folder: Path, step: int | None = None) -> Checkpoint:
    """Read the newest checkpoint, or the one of a step, after checking every byte.

    Raises:
        CheckpointError: there is none; or it is damaged (the one before it is offered); or another
            version wrote it.
    """
    there = steps(folder)
    if not there:
        raise CheckpointError(f"'{folder}' holds no checkpoint to resume from.")
    chosen = there[-1] if step is None else step
    if chosen not in there:
        have = ", ".join(str(s) for s in there)
        raise CheckpointError(f"'{folder}' holds no checkpoint of step {chosen}; it holds {have}.")
    path = folder / f"step-{chosen}"
    problem = manifest.damage(path)
    if problem is not None:
        earlier = [s for s in there if s < chosen]
        offer = (
            f"Resume from the one before it with --from-step {earlier[-1]}."
            if earlier
            else "There is no earlier one."
        )
        raise CheckpointError(f"checkpoint '{path}' is damaged: {problem}. {offer}")
    return Checkpoint(
        step=chosen,
        weights=load_file(path / "weights.safetensors"),
        optimizer=load_file(path / "optimizer.safetensors"),
        state=json.loads((path / "state.json").read_text()),
    )


def check_inputs(point: Checkpoint, **fingerprints: str) -> None:
    """Say before weights are loaded that a checkpoint was made from other files.

    Args:
        point: The checkpoint.
        **fingerprints: Of what is there now: ``model="..."``, ``data="..."``.

    Raises:
        CheckpointError: one of them differs; which is named.
    """
    for what, now in fingerprints.items():
        if point.state.get(f"{what}_fingerprint") != now:
            raise CheckpointError(
                f"the checkpoint after step {point.step} was not made with the {what} that the "
                f"run's config.toml names now: the {what} has changed since. Put it back as it "
                "was, or start a new run."
            )


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints in a folder, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(m[1]) for p in folder.iterdir() if (m := _NAME.match(p.name)))


def newest_state(folder: Path) -> dict[str, Any]:
    """``state.json`` of the newest checkpoint, unchecked, to look at; empty where none is whole."""
    there = steps(folder)
    if not there:
        return {}
    try:
        state = json.loads((folder / f"step-{there[-1]}" / "state.json").read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file({name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    # A rename survives a power cut only once its folder is on disk.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def restore_weights(parameters: dict[str, torch.nn.Parameter], weights: dict[str, Tensor]) -> None:
    """Copy checkpointed weights into the model.

    Raises:
        CheckpointError: the names or shapes differ: the checkpoint is of another model or adapter.
    """
    if parameters.keys() != weights.keys():
        only = sorted(parameters.keys() ^ weights.keys())
        raise CheckpointError(
            f"the checkpoint trains other weights than this run: {len(only)} names are on one side "
            f"only, the first {only[0]!r}."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != weights[name].shape:
                raise CheckpointError(
                    f"the checkpoint's {name!r} has shape {tuple(weights[name].shape)}, the "
                    f"model's {tuple(parameter.shape)}."
                )
            parameter.copy_(weights[name])
