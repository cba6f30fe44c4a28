"""Seconds of a step on one device, from what the pilot measured here."""

from __future__ import annotations

from dataclasses import dataclass

from roost.planner.embedded_sizes import RunSizes
from roost.planner.measured import Pilot, Workload, recipe_digest

MARGIN = 0.1
"""Half a band at the least: what one machine does otherwise from one minute to the next."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step, without rewards and evaluation."""

    generate_s: float
    train_s: float
    low_s: float
    high_s: float
    """All completions at their full budget, all of them trained on."""
    source: str

    @property
    def total_s(self) -> float:
        """Of both phases."""
        return self.generate_s + self.train_s

    def line(self) -> str:
        """For a person."""
        return (
            f"{self.total_s:.3g} s a step ({self.low_s:.3g} to {self.high_s:.3g}): generate "
            f"{self.generate_s:.3g} s, train {self.train_s:.3g} s; {self.source}"
        )

    def as_dict(self) -> dict[str, float | str]:
        """For JSON."""
        return {
            "generate_s": self.generate_s,
            "train_s": self.train_s,
            "total_s": self.total_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "source": self.source,
        }


def step_time(
    sizes: RunSizes, pilot: Pilot, *, mean_prompt: float, resident: int, micro: int
) -> StepTime:
    """The seconds of a step.

    Args:
        sizes: The run.
        pilot: What was measured here.
        mean_prompt: Tokens of a mean prompt.
        resident: Samples decoded at once.
        micro: Tokens of a micro-batch.
    """
    full = full_workload(sizes, mean_prompt)
    load = pilot.workloads.get(recipe_digest(sizes.config))
    seconds = [
        (
            generate_seconds(sizes, pilot, one, mean_prompt=mean_prompt, resident=resident),
            train_seconds(sizes, pilot, one, micro=micro),
        )
        for one in (load or full, full)
    ]
    (generate, train), most = seconds
    band = MARGIN + pilot.spread
    source = "measured here"
    low = (generate + train) * (1 - band)
    if load is None:
        source = "measured here; completions at their full budget, of which no more is known"
        low = 0.0
    return StepTime(generate, train, max(0.0, low), sum(most) * (1 + band), source)


def full_workload(sizes: RunSizes, mean_prompt: float) -> Workload:
    """The worst case: every completion runs to its budget and moves the weights."""
    tokens = sizes.rollouts * sizes.completion
    prompts = sizes.config.data.prompts_per_step
    computed = prompts * mean_prompt + sizes.rollouts * (sizes.completion - 1)
    return Workload(tokens, sizes.completion, computed)


def generate_seconds(
    sizes: RunSizes, pilot: Pilot, load: Workload, *, mean_prompt: float, resident: int
) -> float:
    """Prefill of each prompt once, then steps of all rows that run."""
    speeds = pilot.speeds
    passes = -(-sizes.rollouts // max(1, resident))
    context = mean_prompt + load.tokens / sizes.rollouts / 2
    return (
        speeds.prefill_token_s * sizes.config.data.prompts_per_step * mean_prompt
        + speeds.decode_step_s * load.longest * passes
        + (speeds.decode_row_s + speeds.decode_context_s * context) * load.tokens
    )


def train_seconds(sizes: RunSizes, pilot: Pilot, load: Workload, *, micro: int) -> float:
    """Forward and backward of what moves a weight, and an optimizer step an update."""
    speeds, train = pilot.speeds, sizes.config.train
    token = speeds.recomputed_token_s if sizes.recompute else speeds.kept_token_s
    updates = train.num_iterations * train.updates_per_batch
    packs = max(train.updates_per_batch, load.computed / max(1, micro)) * train.num_iterations
    return (
        token * load.computed * train.num_iterations
        + speeds.pack_s * packs
        + speeds.optimizer_parameter_s * sizes.trainable * updates
    )
