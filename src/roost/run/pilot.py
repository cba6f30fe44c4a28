"""``roost pilot``: rehearse the worst case of a run, and measure what its plan depends on.

No weight moves (the learning rate is 0) and nothing is left behind but the measurements, which
``roost.planner.measured`` keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from roost.config import RunConfig
from roost.config.loading import build_config, merge
from roost.errors import ConfigError
from roost.planner.embedded import EmbeddedPlan, plan_again
from roost.planner.embedded_phases import generate_phase, train_phase
from roost.planner.measured import Pilot, Speeds, Workload, recipe_digest, write_pilot
from roost.planner.terms import gib
from roost.run.display import Display
from roost.run.folder import RunFolder
from roost.run.pilot_probes import (
    call_of,
    forced_groups,
    fullest_pack,
    longest_prompts,
    real_steps,
    training_seconds,
)
from roost.run.pilot_speeds import Call, decoding_error, decoding_speeds
from roost.run.prepare import place_of, prepare
from roost.run.session import Session, open_session
from roost.samples import Group, Prompt

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
    plan = plan_again(prepared.plan, pilot, prepared.prompts.report.mean)
    return PilotResult(pilot, path, plan, *peaks)


def _measure(session: Session, display: Display, steps: int) -> tuple[Pilot, tuple[int, int]]:
    """The measurements, and the peaks of generating and training."""
    prepared = session.prepared
    display.waiting_for("warming up")
    prompts = longest_prompts(prepared)
    # Kernels are compiled and moments allocated with the first step, which is no like the others.
    session.trainer.update(forced_groups(session, prompts[:1], tokens=4))
    calls: list[Call] = []
    groups, rehearsed = _rehearse(session, display, prompts, calls)
    display.say("measuring")
    for count in sorted({1, max(1, len(prompts) // 2), len(prompts)}):
        for tokens in (2, PROBE_TOKENS):
            forced_groups(session, prompts[:count], tokens=tokens, calls=calls)
    training = training_seconds(session, groups)
    rows = real_steps(session, display, steps)
    calls += [call_of(row, prepared) for row in rows]
    speeds = Speeds(**decoding_speeds(calls), **training)
    later = _peaks(session)
    pack = fullest_pack(session, groups)
    load = _workload(rows, pack)
    generate, train = _residuals(session, rehearsed, later, (pack, load.at_once))
    pilot = Pilot(
        place=place_of(prepared.config, prepared.shape, prepared.device, prepared.dtype),
        speeds=speeds,
        spread=decoding_error(calls, speeds),
        generate_residual_bytes=generate,
        train_residual_bytes=train,
        workloads={recipe_digest(prepared.config): load},
    )
    return pilot, later


def _rehearse(
    session: Session, display: Display, prompts: Sequence[Prompt], calls: list[Call]
) -> tuple[list[Group], tuple[int, int]]:
    """The worst case: its groups, and the peaks of both phases."""
    display.say("rehearsing the worst case: longest prompts, completions to their full budget")
    with _memory_refused("generate"), session.ledger.phase("generate"):
        groups = forced_groups(session, prompts, calls=calls)
    with _memory_refused("train"), session.ledger.phase("train"):
        session.trainer.update(groups)
    return groups, _peaks(session)


def _residuals(
    session: Session, rehearsed: tuple[int, int], later: tuple[int, int], packs: tuple[int, int]
) -> tuple[int, int]:
    """Bytes of both phases that their terms leave out.

    Args:
        session: The run.
        rehearsed: Peaks of the rehearsal.
        later: Peaks of all steps so far.
        packs: Tokens of the largest micro-batch of the rehearsal, and of all steps so far.
    """
    plan = session.prepared.plan
    bare = replace(plan.sizes, generate_residual=0, train_residual=0)
    generate = later[0] - generate_phase(bare, plan.cache_bytes).bytes
    train = max(
        peak - train_phase(bare, pack).bytes
        for peak, pack in ((rehearsed[1], packs[0]), (later[1], packs[1]))
    )
    return generate, train


def _workload(rows: Sequence[Mapping[str, float]], pack: int) -> Workload:
    """The mean of some steps, and the largest micro-batch of these and of the rehearsal."""
    return Workload(
        tokens=fmean(row["tokens/generated"] for row in rows),
        longest=fmean(row["completions/max_length"] for row in rows),
        computed=fmean(row["tokens/computed"] for row in rows),
        at_once=max(pack, *(int(row["tokens/computed_at_once"]) for row in rows)),
    )


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
