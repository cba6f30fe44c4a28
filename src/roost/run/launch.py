"""Start a run or go on with one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from roost.config import RunConfig
from roost.config.loading import load_config
from roost.errors import CheckpointError
from roost.run import checkpoint, folder
from roost.run.display import Display
from roost.run.folder import FolderLock, RunFolder
from roost.run.interrupts import StopSwitch
from roost.run.loop import run
from roost.run.prepare import Prepared, prepare
from roost.run.report import RunResult, conclude
from roost.run.session import open_session, write_description


class PythonObjects:
    """What a caller gave as Python objects rather than by name."""

    def __init__(self, data: Any = None, functions: dict[str, Callable[..., Any]] | None = None):
        self.data = data
        self.functions = functions or {}


def start_run(
    config: RunConfig,
    base_dir: Path,
    display: Display,
    *,
    objects: PythonObjects,
    force: bool = False,
) -> RunResult:
    """Prepare a new run, make its folder, and train."""
    prepared = prepare(config, base_dir, data=objects.data, reward_functions=objects.functions)
    announce(prepared, display)
    if not force:
        prepared.plan.require_fit()
    root = Path(config.output.folder or folder.default_folder(config.model.path, datetime.now()))
    lock = FolderLock(root)
    try:
        target = folder.create(root, expected_bytes=_disk_bytes(prepared))
        write_description(prepared, target)
        return _train(prepared, target, None, display)
    finally:
        lock.release()


def resume_run(
    root: Path,
    display: Display,
    *,
    objects: PythonObjects,
    overrides: Sequence[str] = (),
    recipe: Path | None = None,
    from_step: int | None = None,
) -> RunResult:
    """Go on with a run from its newest checkpoint."""
    target = RunFolder(root)
    if not target.is_run:
        raise CheckpointError(f"--resume '{root}': not a run folder (no config.toml in it).")
    lock = FolderLock(root)
    try:
        config = resumed_config(target, overrides, recipe)
        prepared = prepare(
            config,
            _base_dir(target),
            data=objects.data,
            reward_functions=objects.functions,
        )
        announce(prepared, display)
        point = None
        if checkpoint.steps(target.checkpoints) or from_step is not None:
            point = checkpoint.load(target.checkpoints, from_step)
        display.say(f"resuming after step {point.step if point else 0}")
        return _train(prepared, target, point, display)
    finally:
        lock.release()


def _train(
    prepared: Prepared, target: RunFolder, point: checkpoint.Checkpoint | None, display: Display
) -> RunResult:
    session = open_session(prepared, target, point)
    try:
        with StopSwitch() as stop:
            finished = run(session, display, stop)
        return conclude(session, finished)
    finally:
        session.close()


def announce(prepared: Prepared, display: Display) -> None:
    """Say what will run and the memory it needs."""
    config = prepared.config
    method = "LoRA" if config.train.method == "lora" else "full-parameter"
    display.say(
        f"model   {config.model.path}: {prepared.shape.parameters:,} parameters, "
        f"{str(prepared.dtype).removeprefix('torch.')} on {prepared.device.type}, {method}"
    )
    for line in prepared.prompts.report.lines():
        display.say(f"data    {line}")
    display.say(f"rewards {', '.join(reward.name for reward in prepared.rewards)}")
    display.say(
        f"step    {config.data.prompts_per_step} prompts x {config.rollout.generations} "
        f"completions of up to {config.rollout.max_completion_tokens} tokens, "
        f"{config.train.steps} steps"
    )
    for line in prepared.plan.short():
        display.say(f"plan    {line}")


RESUME_MAY_CHANGE = ("train.steps", "output.", "rollout.cache_bytes", "rewards.workers")
"""Fields that a resumed run may set anew: none of them alters what a step computes."""


def resumed_config(
    target: RunFolder, overrides: Sequence[str] = (), recipe: Path | None = None
) -> RunConfig:
    """The configuration to resume with.

    Raises:
        CheckpointError: a recipe or override would change what the run computes; its fields are
            named.
    """
    before = load_config(target.config)
    after = load_config(recipe or target.config, overrides)
    old, new = _flat(before.model_dump()), _flat(after.model_dump())
    changed = [name for name in new if new[name] != old.get(name)]
    refused = [n for n in changed if not n.startswith(RESUME_MAY_CHANGE)]
    if refused:
        first = refused[0]
        raise CheckpointError(
            f"the run in '{target.root}' was made by another recipe: {', '.join(refused)} differ "
            f"({first} was {old.get(first)!r}, is {new[first]!r}). Resume without a recipe, or "
            "start a new run."
        )
    return after


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _base_dir(target: RunFolder) -> Path:
    return Path(json.loads(target.environment.read_text())["base_dir"])


def _disk_bytes(prepared: Prepared) -> int:
    """What checkpoints and the final model will take: 14 bytes a trained parameter each."""
    kept = prepared.config.output.keep_checkpoints + 1
    return prepared.plan.checkpoint_bytes * kept + prepared.plan.final_bytes
