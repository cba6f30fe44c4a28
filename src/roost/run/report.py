"""How a run ended: what improved, what it took, and where it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from roost.planner.terms import gib
from roost.run.display import figure
from roost.run.folder import write_json
from roost.run.metrics import read_metrics
from roost.run.session import Session


@dataclass(frozen=True, slots=True)
class RunResult:
    """What ``roost.train`` returns."""

    folder: Path
    """The run folder; ``folder / "final"`` is the trained model."""
    finished: bool
    """False when the run was stopped before its last step; resume it from the folder."""
    steps: int
    reward_first: float
    """Mean training reward of the first tenth of the steps."""
    reward_last: float
    """Mean training reward of the last tenth."""
    held_out: dict[str, dict[str, Any]]
    """Held-out results by the step they were taken after."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "folder": str(self.folder),
            "finished": self.finished,
            "steps": self.steps,
            "reward_first": _number(self.reward_first),
            "reward_last": _number(self.reward_last),
            "held_out": self.held_out,
        }

    def lines(self) -> list[str]:
        """For a person."""
        first, last = self.reward_first, self.reward_last
        lines = []
        if self.steps:
            lines.append(
                f"training reward {figure(first)} -> {figure(last)} over {self.steps} steps"
            )
        ends = sorted(self.held_out, key=int)
        if len(ends) > 1:
            before, after = self.held_out[ends[0]], self.held_out[ends[-1]]
            lines.append(
                f"held-out reward {figure(before['reward'])} -> {figure(after['reward'])}, "
                f"pass@1 {before['pass_at_1']:.3f} -> {after['pass_at_1']:.3f} "
                f"on {after['prompts']} prompts never trained on"
            )
        lines.append(f"run folder: {self.folder}")
        if self.finished:
            lines.append(f"trained model: {self.folder / 'final'}")
        else:
            lines.append(f"stopped; go on with: roost train --resume {self.folder}")
        return lines


def conclude(session: Session, finished: bool) -> RunResult:
    """Summarise a run from its metrics file, and write ledger.json and report.json."""
    rewards = [row["reward"] for row in read_metrics(session.folder.metrics)]
    scored = [reward for reward in rewards if reward is not None]
    tenth = max(1, len(scored) // 10)
    result = RunResult(
        folder=session.folder.root,
        finished=finished,
        steps=session.step,
        reward_first=fmean(scored[:tenth]) if scored else math.nan,
        reward_last=fmean(scored[-tenth:]) if scored else math.nan,
        held_out=session.evaluations,
    )
    if session.ranks.leads:
        write_json(session.folder.report, result.as_dict())
        write_json(session.folder.ledger, ledger_table(session))
    return result


def ledger_table(session: Session) -> list[dict[str, Any]]:
    """Planned and measured bytes and seconds of each phase; None where nothing was planned."""
    plan = session.prepared.plan
    planned = {phase.name: phase.bytes for phase in plan.phases}
    step = plan.step
    seconds = {"generate": step.generate_s, "train": step.train_s} if step else {}
    return [
        {
            "phase": name,
            "planned_bytes": planned.get(name),
            "measured_bytes": record.peak_bytes,
            "planned_seconds": seconds[name] * record.times if name in seconds else None,
            "seconds": record.seconds,
            "times": record.times,
        }
        for name, record in session.ledger.phases.items()
    ]


def ledger_lines(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Predicted beside measured, of the phases that the plan has.

    >>> row = {"phase": "train", "planned_bytes": 3 * 2**30, "measured_bytes": 2**30, "times": 4}
    >>> ledger_lines([{**row, "planned_seconds": 8.0, "seconds": 10.0}])
    ['train    planned 3.00 GiB, measured 1.00 GiB; planned 2 s a step, measured 2.5 s']
    >>> ledger_lines([{**row, "planned_seconds": None, "seconds": 10.0}])
    ['train    planned 3.00 GiB, measured 1.00 GiB; measured 2.5 s a step']
    """
    lines = []
    for row in table:
        if row["planned_bytes"] is None or not row["times"]:
            continue
        measured, planned = row["seconds"] / row["times"], row["planned_seconds"]
        seconds = f"measured {measured:.3g} s a step"
        if planned is not None:
            seconds = f"planned {planned / row['times']:.3g} s a step, measured {measured:.3g} s"
        lines.append(
            f"{row['phase']:8} planned {gib(row['planned_bytes'])}, "
            f"measured {gib(row['measured_bytes'])}; {seconds}"
        )
    return lines


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
