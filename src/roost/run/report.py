"""How a run ended: what improved, what it took, and where it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

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
    """Planned and measured bytes of each phase."""
    planned = {phase.name: phase.bytes for phase in session.prepared.plan.phases}
    return [
        {
            "phase": name,
            "planned_bytes": planned.get(name),
            "measured_bytes": record.peak_bytes,
            "seconds": record.seconds,
            "times": record.times,
        }
        for name, record in session.ledger.phases.items()
    ]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
