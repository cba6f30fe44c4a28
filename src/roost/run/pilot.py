"""``roost pilot``: rehearse the worst case of a run, and measure what its plan depends on.

No weight moves (the learning rate is 0) and nothing is left behind but the measurements, which
``roost.planner.measured`` keeps.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from roost.config import RunConfig
from roost.config.loading import build_config, merge
from roost.errors import ConfigError
from roost.planner.embedded import HEADROOM, EmbeddedPlan, plan_embedded
from roost.planner.measured import Pilot, Speeds, Workload, recipe_digest, write_pilot
from roost.planner.terms import gib
from roost.rewards import ScoringReport
from roost.run.display import Display
from roost.run.folder import RunFolder
from roost.run.interrupts import StopSwitch
from roost.run.loop import train_step
from roost.run.prepare import Prepared, place_of, prepare
from roost.run.session import Session, open_session
from roost.samples import Group, Prompt
from roost.training.batch import TrainBatch

PROBE_TOKENS = 32
"""Completion tokens of a decoding probe, at most."""


@dataclass(frozen=True, slots=True)
class PilotResult:
    """What a pilot found."""

    pilot: Pilot
    path: Path
    plan: EmbeddedPlan
    """The run's plan with these measurements."""
    generate_peak_bytes: int
    """Of the worst case."""
    train_peak_bytes: int
    """Likewise."""

    def lines(self) -> list[str]:
        """For a person."""
        speeds = self.pilot.speeds
        return [
            f"worst case: generate {gib(self.generate_peak_bytes)}, "
            f"train {gib(self.train_peak_bytes)}",
            f"a decode step takes {1e3 * speeds.decode_step_s:.3g} ms and "
            f"{1e3 * speeds.decode_row_s:.3g} ms a sequence; a trained token "
            f"{1e3 * speeds.kept_token_s:.3g} ms, {1e3 * speeds.recomputed_token_s:.3g} ms "
            "recomputed",
            *(f"plan: {line}" for line in self.plan.short()),
            f"kept in {self.path}",
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": str(self.path),
            "pilot": asdict(self.pilot),
            "generate_peak_bytes": self.generate_peak_bytes,
            "train_peak_bytes": self.train_peak_bytes,
            "plan": self.plan.as_dict(),
        }


def run_pilot(config: RunConfig, base_dir: Path, display: Display, *, steps: int) -> PilotResult:
    """Rehearse and measure; writes the measurements.

    Args:
        config: The run.
        base_dir: Where relative paths of its data and rewards start.
        display: Told what is going on.
        steps: Steps as the run itself would take them, for the length of its completions.

    Raises:
        ConfigError: the run cannot be piloted, does not fit, or ran out of memory.
    """
    if config.rollout.engine != "embedded":
        raise ConfigError(
            f"rollout.engine = {config.rollout.engine!r}: `roost pilot` measures the embedded "
            "engine only. Leave rollout.engine out, or plan without a pilot."
        )
    still = {
        "train": {"learning_rate": 0.0},
        "lora": {"learning_rate": 0.0},
        "output": {"trackers": [], "samples_every": 0},
    }
    prepared = prepare(build_config(merge(config.model_dump(), still)), base_dir, display)
    prepared.plan.require_fit()
    with TemporaryDirectory(prefix="roost-pilot-") as folder:
        session = open_session(prepared, RunFolder(Path(folder)), None)
        try:
            pilot, peaks = _measure(session, display, steps)
        finally:
            session.close()
    path = write_pilot(pilot)
    return PilotResult(pilot, path, planned_with(prepared, pilot), *peaks)


def planned_with(prepared: Prepared, pilot: Pilot) -> EmbeddedPlan:
    """The plan that a new process would make, with measurements."""
    before = prepared.plan
    held = sum(t.bytes for t in before.phases[0].terms if t.name == "process")
    return plan_embedded(
        prepared.config,
        prepared.shape,
        available_bytes=int((before.available_bytes - held) / HEADROOM),
        dtype_bytes=prepared.dtype.itemsize,
        prompt_tokens=prepared.prompts.report.longest,
        process_bytes=held,
        device=prepared.device.type,
        mean_prompt=prepared.prompts.report.mean,
        pilot=pilot,
    )


def _measure(session: Session, display: Display, steps: int) -> tuple[Pilot, tuple[int, int]]:
    prepared = session.prepared
    display.waiting_for("warming up")
    prompts = longest_prompts(prepared)
    # Kernels are compiled and moments allocated with the first step, which is no like the others.
    warm = forced_groups(session, prompts[:1], tokens=4)
    session.trainer.update(warm)
    display.say("rehearsing the worst case: longest prompts, completions to their full budget")
    calls: list[Call] = []
    with _memory_refused("generate"), session.ledger.phase("generate"):
        groups = forced_groups(session, prompts, calls=calls)
    with _memory_refused("train"), session.ledger.phase("train"):
        session.trainer.update(groups)
    display.say("measuring")
    peaks = _peaks(session)
    for count in sorted({1, max(1, len(prompts) // 2), len(prompts)}):
        for tokens in (2, PROBE_TOKENS):
            forced_groups(session, prompts[:count], tokens=tokens, calls=calls)
    training = training_seconds(session, groups)
    rows = real_steps(session, display, steps)
    calls += [Call.of(row, prepared) for row in rows]
    speeds = Speeds(**decoding_speeds(calls), **training)
    load = Workload(
        tokens=fmean(row["tokens/generated"] for row in rows),
        longest=fmean(row["completions/max_length"] for row in rows),
        computed=fmean(row["tokens/computed"] for row in rows),
    )
    later = _peaks(session)
    peaks = max(peaks[0], later[0]), max(peaks[1], later[1])
    generate, train = (
        phase.bytes - sum(t.bytes for t in phase.terms if t.name == "residual")
        for phase in prepared.plan.phases
    )
    place = place_of(prepared.config, prepared.shape, prepared.device, prepared.dtype)
    pilot = Pilot(
        place=place,
        speeds=speeds,
        spread=decoding_error(calls, speeds),
        generate_residual_bytes=peaks[0] - generate,
        train_residual_bytes=peaks[1] - train,
        workloads={recipe_digest(prepared.config): load},
    )
    return pilot, peaks


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the engine: what it did and how long that took."""

    prompt_tokens: float
    steps: float
    tokens: float
    """Rows of all steps."""
    context: float
    """Tokens that all rows of all steps looked back at."""
    seconds: float

    @classmethod
    def of(cls, row: dict[str, float], prepared: Prepared) -> Call:
        """From the metrics of a training step."""
        config, mean = prepared.config, prepared.prompts.report.mean
        tokens = row["tokens/generated"]
        rollouts = config.data.prompts_per_step * config.rollout.generations
        passes = -(-rollouts // prepared.plan.resident_rollouts)
        return cls(
            config.data.prompts_per_step * mean,
            passes * row["completions/max_length"],
            tokens,
            tokens * (mean + tokens / rollouts / 2),
            row["time/generate_s"],
        )


def longest_prompts(prepared: Prepared) -> list[Prompt]:
    """A step's worth of the longest training prompts."""
    ranked = sorted(prepared.prompts.train, key=lambda prompt: -len(prompt.token_ids))
    return ranked[: prepared.config.data.prompts_per_step]


def forced_groups(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    tokens: int | None = None,
    calls: list[Call] | None = None,
) -> list[Group]:
    """Samples that never stop before the budget, every second with an advantage of either sign.

    Args:
        session: The run.
        prompts: Theirs.
        tokens: Of each; by default the recipe's budget, which it never exceeds.
        calls: Where the seconds are noted.
    """
    config = session.prepared.config
    budget = min(
        tokens or config.rollout.max_completion_tokens, config.rollout.max_completion_tokens
    )
    sampling = replace(
        session.sampling, max_completion_tokens=budget, stop=(), stop_token_ids=frozenset()
    )
    groups = {prompt.id: Group(prompt, []) for prompt in prompts}
    start = time.perf_counter()
    generations = config.rollout.generations
    made = session.engine.generate(prompts, generations, sampling, seed=config.seed, step=0)
    for sample in made:
        sample.reward = float(sample.index % 2)
        sample.advantage = 2 * sample.reward - 1
        groups[sample.prompt_id].samples.append(sample)
    seconds = time.perf_counter() - start
    if calls is not None:
        held = sum(len(prompt.token_ids) for prompt in prompts)
        count = len(prompts) * generations
        passes = -(-count // session.prepared.plan.resident_rollouts)
        context = budget * generations * (held + len(prompts) * budget / 2)
        calls.append(Call(held, passes * budget, count * budget, context, seconds))
    return list(groups.values())


def real_steps(session: Session, display: Display, steps: int) -> list[dict[str, float]]:
    """Metrics of the run's own first steps."""
    report = ScoringReport()
    with StopSwitch() as stop:
        return [train_step(session, report, display, stop) for _ in range(steps)]


def decoding_speeds(calls: Sequence[Call]) -> dict[str, float]:
    """Least squares over relative errors, no term negative."""
    work = np.array([[c.prompt_tokens, c.steps, c.tokens, c.context] for c in calls])
    seconds = np.array([call.seconds for call in calls])
    fitted = non_negative(work / seconds[:, None], np.ones(len(calls)))
    names = ("prefill_token_s", "decode_step_s", "decode_row_s", "decode_context_s")
    return dict(zip(names, fitted, strict=True))


def non_negative(rows: Any, target: Any) -> list[float]:
    """Non-negative least squares: the best of all subsets of columns, which here are few."""
    count = rows.shape[1]
    best, least = np.zeros(count), np.inf
    for mask in range(1, 2**count):
        chosen = [i for i in range(count) if mask >> i & 1]
        found, *_ = np.linalg.lstsq(rows[:, chosen], target, rcond=None)
        error = float(np.sum((rows[:, chosen] @ found - target) ** 2))
        if (found >= 0).all() and error < least:
            best, least = np.zeros(count), error
            best[chosen] = found
    return [float(value) for value in best]


def decoding_error(calls: Sequence[Call], speeds: Speeds) -> float:
    """Mean relative error of the speeds on the calls that they were fitted to."""
    errors = []
    for call in calls:
        seconds = (
            speeds.prefill_token_s * call.prompt_tokens
            + speeds.decode_step_s * call.steps
            + speeds.decode_row_s * call.tokens
            + speeds.decode_context_s * call.context
        )
        errors.append(abs(seconds / call.seconds - 1))
    return fmean(errors)


def training_seconds(session: Session, groups: Sequence[Group]) -> dict[str, float]:
    """Seconds of a token, of a pack and of the optimizer, by whole updates and a small one."""
    trainer, plan = session.trainer, session.prepared.plan
    few = [replace(groups[0], samples=groups[0].samples[:2])]
    points = [_accumulated(session, part) for part in (few, groups[:1], groups)]
    work = np.array([[tokens, packs] for tokens, packs, _ in points])
    seconds = np.array([taken for *_, taken in points])
    token, pack = non_negative(work / seconds[:, None], np.ones(len(points)))
    start = time.perf_counter()
    trainer.optimizer.step(0.0)
    optimizer = (time.perf_counter() - start) / plan.trainable_parameters
    kept = recomputed = token
    if plan.gradient_checkpointing:
        kept = 0.75 * token  # Not measured, since it may not fit: three forwards' worth of four.
    else:
        with recomputing(session):
            tokens, packs, taken = _accumulated(session, groups[:1])
        recomputed = max(token, (taken - pack * packs) / tokens)
    return {
        "kept_token_s": kept,
        "recomputed_token_s": recomputed,
        "pack_s": pack,
        "optimizer_parameter_s": optimizer,
    }


def _accumulated(session: Session, groups: Sequence[Group]) -> tuple[float, int, float]:
    """Tokens computed, packs, and seconds of their forward and backward."""
    trainer = session.trainer
    batch = TrainBatch.of(groups, session.prepared.config)
    samples = batch.samples
    sums: defaultdict[str, float] = defaultdict(float)
    trainer.optimizer.zero_grad()
    start = time.perf_counter()
    trainer.accumulate(batch, samples, sums)
    seconds = time.perf_counter() - start
    return sums["computed"], len(batch.packs(samples, trainer.micro_batch_tokens)), seconds


@contextmanager
def recomputing(session: Session) -> Iterator[None]:
    """Activations are computed again in the backward, for a while."""
    base: Any = session.policy.base
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        base.gradient_checkpointing_disable()


@contextmanager
def _memory_refused(phase: str) -> Iterator[None]:
    """Say which phase ran out of memory, and what to do.

    Raises:
        ConfigError: it did.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        what = "rollout.cache_bytes" if phase == "generate" else "train.micro_batch_tokens"
        raise ConfigError(
            f"the worst case ran out of memory in the {phase} phase ({error}). Lower {what} or "
            "rollout.max_completion_tokens; `roost plan` says what each saves."
        ) from error


def _peaks(session: Session) -> tuple[int, int]:
    phases = session.ledger.phases
    return phases["generate"].peak_bytes, phases["train"].peak_bytes
