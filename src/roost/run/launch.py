"""Start a run or go on with one."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from roost.config import RunConfig
from roost.errors import CheckpointError
from roost.run import checkpoint, environment
from roost.run.claim import Claim, check_new, check_room
from roost.run.display import Display, QuietDisplay
from roost.run.folder import RunFolder, base_dir_of, default_folder, existing_run
from roost.run.interrupts import StopSwitch
from roost.run.lock import FolderLock
from roost.run.loop import run
from roost.run.prepare import Prepared, prepare
from roost.run.report import RunResult, conclude, ledger_lines, ledger_table
from roost.run.resumed import resumed_config
from roost.run.session import Session, open_session, write_config, write_description
from roost.run.start_checks import check_start
from roost.training.launched import open_ranks, world_size
from roost.training.parallel import Ranks

SIGNAL_S = 3.0
"""Of several processes, signals that come this soon after the first ask for the same stop."""


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
    """Prepare a new run, make its folder, and train; under ``torchrun`` on every rank."""
    check_start(config, base_dir)
    shards = config.rollout.ranks_per_engine
    with open_ranks(config.model.device, tensor_parallel=shards) as ranks:
        quiet = display if ranks.leads else QuietDisplay()
        return _start(config, base_dir, quiet, objects=objects, force=force, ranks=ranks)


def _start(
    config: RunConfig,
    base_dir: Path,
    display: Display,
    *,
    objects: PythonObjects,
    force: bool,
    ranks: Ranks,
) -> RunResult:
    root = Path(config.output.folder or default_folder(config.model.path, datetime.now()))
    if ranks.leads:
        check_new(root)
    # A default name holds the time, which ranks read at different moments.
    root = ranks.gather(root, "the run's folder")[0]
    prepared = prepare(
        config, base_dir, display, data=objects.data, reward_functions=objects.functions
    )
    announce(prepared, display)
    if not force:
        prepared.plan.require_fit()
    if not ranks.leads:
        return _train(open_session(prepared, RunFolder(root), None, ranks), display)
    with Claim(root, expected_bytes=_disk_bytes(prepared)) as claim:
        write_description(prepared, claim.folder)
        session = open_session(prepared, claim.folder, None, ranks)
        claim.keep()
        return _train(session, display)


def check_run(config: RunConfig, base_dir: Path, display: Display) -> Prepared:
    """All that can be said about a new run before a weight is loaded: ``--dry-run``.

    Raises:
        RoostError: the first thing that is wrong, by name.
    """
    if config.output.folder is not None:
        check_new(Path(config.output.folder))
    check_start(config, base_dir)
    prepared = prepare(config, base_dir, display)
    announce(prepared, display)
    prepared.plan.require_fit()
    return prepared


def resume_run(
    root: Path,
    display: Display,
    *,
    objects: PythonObjects,
    overrides: Sequence[str] = (),
    sections: Mapping[str, Any] | None = None,
    recipe: Path | None = None,
    from_step: int | None = None,
) -> RunResult:
    """Go on with a run from its newest checkpoint, on the same or another number of ranks."""
    target = existing_run(root, "--resume")
    config = resumed_config(target, overrides, recipe, sections)
    opened = open_ranks(config.model.device, tensor_parallel=config.rollout.ranks_per_engine)
    with opened as ranks, FolderLock(root) if ranks.leads else nullcontext():
        display = display if ranks.leads else QuietDisplay()
        if ranks.leads:
            checkpoint.settle(target.checkpoints)
        # Nobody reads a checkpoint before it is put right.
        ranks.gather(None, "the checkpoints to be put right")
        prepared, point = check_resume(
            target,
            display,
            objects=objects,
            overrides=overrides,
            sections=sections,
            recipe=recipe,
            from_step=from_step,
        )
        check_room(root, _disk_bytes(prepared, kept=len(checkpoint.steps(target.checkpoints))))
        display.say(f"resuming after step {point.step if point else 0}")
        # All have read the folder before it is written.
        ranks.gather(None, "the checkpoint")
        if ranks.leads:
            if moved := environment.moved(target, prepared.device, prepared.rewards):
                environment.record_move(target, point.step if point else 0, moved)
            write_config(prepared.config, target)
        return _train(open_session(prepared, target, point, ranks), display)


def check_resume(
    target: RunFolder,
    display: Display,
    *,
    objects: PythonObjects,
    overrides: Sequence[str] = (),
    sections: Mapping[str, Any] | None = None,
    recipe: Path | None = None,
    from_step: int | None = None,
) -> tuple[Prepared, checkpoint.Checkpoint | None]:
    """What a run goes on with, checked; no checkpoint where it was stopped before its first.

    Raises:
        RoostError: its model, data or recipe is another one now, or its checkpoint is damaged.
    """
    config = resumed_config(target, overrides, recipe, sections)
    check_start(config, base_dir_of(target))
    prepared = prepare(
        config, base_dir_of(target), display, data=objects.data, reward_functions=objects.functions
    )
    point = None
    if checkpoint.steps(target.checkpoints) or from_step is not None:
        # After the plan, which counts what memory is free: it should be that of a new run.
        point = checkpoint.load(target.checkpoints, from_step)
        checkpoint.check_inputs(
            point, model=prepared.model_fingerprint, data=prepared.data_fingerprint
        )
        _check_steps(config.train.steps, point.step)
    announce(prepared, display)
    if moved := environment.moved(target, prepared.device, prepared.rewards):
        for line in environment.moved_lines(moved):
            display.warn(line)
    return prepared, point


def _check_steps(asked: int, done: int) -> None:
    if asked < done:
        raise CheckpointError(
            f"train.steps = {asked}: the run has done {done} steps already. Set train.steps to at "
            f"least {done}, or go on from an earlier checkpoint with --from-step."
        )


def _train(session: Session, display: Display) -> RunResult:
    try:
        with StopSwitch(0.0 if session.ranks.world == 1 else SIGNAL_S) as stop:
            finished = run(session, display, stop)
        # Rank 0 has written everything, or its failure ends all.
        session.ranks.gather(None, "the last files")
        for line in ledger_lines(ledger_table(session)):
            display.say(line)
        return conclude(session, finished)
    except (OSError, SafetensorError) as error:
        root = session.folder.root
        if not _is_of_folder(error, root):
            raise
        what = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"the run folder '{root}' cannot be written any more: {what}. Make room, or put it "
            f"back, and go on with: roost train --resume {root}"
        ) from error
    finally:
        session.close()


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def _is_of_folder(error: OSError | SafetensorError, root: Path) -> bool:
    """Whether a disk is full, or what the run wrote is gone; other failures are other faults."""
    if isinstance(error, SafetensorError):
        return "I/O error" in str(error)
    # Some libraries do not say which file it was.
    return error.errno in _DISK or not root.is_dir() or str(error.filename).startswith(str(root))


def announce(prepared: Prepared, display: Display) -> None:
    """Say what will run and the memory it needs."""
    config = prepared.config
    method = "LoRA" if config.train.method == "lora" else "full-parameter"
    display.say(
        f"model   {config.model.path}: {prepared.shape.parameters:,} parameters, "
        f"{str(prepared.dtype).removeprefix('torch.')} on {prepared.device.type}, {method}"
    )
    display.say(f"data    {prepared.prompts.report.line()}")
    for line in prepared.prompts.report.losses():
        display.warn(f"data    {line}")
    display.say(f"rewards {', '.join(reward.name for reward in prepared.rewards)}")
    display.say(
        f"step    {config.data.prompts_per_step} prompts x {config.rollout.generations} "
        f"completions of up to {config.rollout.max_completion_tokens} tokens, "
        f"{config.train.steps} steps"
    )
    for line in prepared.plan.short():
        display.say(f"plan    {line}")
    if config.plan.gpu is not None:
        display.say(f"note    [plan] is for {config.plan.gpu}; this run takes one device a process")
    shards = config.rollout.ranks_per_engine
    if world_size() % shards:  # only checked: a run would have been refused
        display.say(f"note    start it with torchrun --nproc-per-node, a multiple of {shards}")


def _disk_bytes(prepared: Prepared, kept: int = 0) -> int:
    """What checkpoints and the final model will still take, beside the checkpoints that are kept
    already. A new one is written before an old one goes."""
    more = max(1, prepared.config.output.keep_checkpoints + 1 - kept)
    return prepared.plan.checkpoint_bytes * more + prepared.plan.final_bytes
