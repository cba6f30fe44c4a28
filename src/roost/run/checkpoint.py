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

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from roost import __version__
from roost.errors import CheckpointError
from roost.run.folder import write_json

FORMAT = 1
"""Rises when a checkpoint written before can no longer be read."""

_NAME = re.compile(r"^step-(\d+)$")


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
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        _write_tensors(beside / "weights.safetensors", checkpoint.weights)
        _write_tensors(beside / "optimizer.safetensors", checkpoint.optimizer)
        write_json(beside / "state.json", checkpoint.state)
        write_json(beside / "manifest.json", _manifest(beside, checkpoint.step))
        _replace(target, beside)
        _sync_folder(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(
            f"checkpoint '{target}' cannot be written: {error}. Earlier checkpoints are untouched; "
            "make room and go on with --resume."
        ) from error
    for old in steps(folder)[:-keep]:
        _remove(folder / f"step-{old}")
    return target


def _set_aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _replace(target: Path, beside: Path) -> None:
    """Move a checkpoint into place. What ``step-N`` names is whole at every moment; where the old
    one is set aside and the new one not yet there, ``recover`` puts the old one back."""
    aside = _set_aside(target)
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    beside.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def _remove(path: Path) -> None:
    """Take a checkpoint out of sight first, so that a kill leaves no half of it to be offered."""
    aside = _set_aside(path)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    shutil.rmtree(aside)


def recover(folder: Path) -> None:
    """Put right what a kill in the middle of ``save`` has left. Only for who holds the lock."""
    for aside in folder.glob(".step-*.old"):
        target = folder / aside.name[1 : -len(".old")]
        if target.exists() or damage(aside) is not None:
            shutil.rmtree(aside)
        else:
            aside.rename(target)
    for part in folder.glob(".step-*.part"):
        shutil.rmtree(part)


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
    problem = damage(path)
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


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None: every file is compared with the manifest.

    Raises:
        CheckpointError: its format is another version's.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        written, files = manifest["format"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its manifest.json cannot be read ({type(error).__name__}: {error})"
    if written != FORMAT:
        raise CheckpointError(
            f"checkpoint '{path}' was written by Roost {manifest.get('roost')} in format "
            f"{written}; Roost {__version__} reads format {FORMAT}. Resume with the "
            "version that wrote it."
        )
    for name, entry in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {entry['bytes']}"
        if _sha256(file) != entry["sha256"]:
            return f"{name} does not have the checksum it was written with"
    return None


def _manifest(folder: Path, step: int) -> dict[str, Any]:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.iterdir())
    }
    return {"format": FORMAT, "roost": __version__, "step": step, "files": files}


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file({name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
