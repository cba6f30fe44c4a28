"""The plan of a run on one device, with either engine: bytes by phase and term.

The phases share the device in turn, so what must fit is the largest of them, not their sum.
``embedded_sizes`` counts the bytes; ``embedded_choice`` chooses what the run leaves open.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from roost.config import RunConfig
from roost.errors import ConfigError
from roost.planner.embedded_choice import Choice, choose
from roost.planner.embedded_sizes import RunSizes
from roost.planner.embedded_time import StepTime, step_time
from roost.planner.measured import Pilot
from roost.planner.model_shape import ModelShape
from roost.planner.terms import Phase, gib

HEADROOM = 0.9
"""Share of the available memory that a plan may use."""


@dataclass(frozen=True, slots=True)
class EmbeddedPlan:
    """What a run needs and what was chosen for it."""

    phases: tuple[Phase, ...]
    available_bytes: int
    cache_bytes: int
    """Bound on the engine's key-value cache."""
    least_cache_bytes: int
    """What one sample needs of it."""
    micro_batch_tokens: int
    """Tokens of one forward and backward."""
    gradient_checkpointing: bool
    """Whether the backward computes activations again."""
    resident_rollouts: int
    """Samples decoded at once."""
    rollouts_per_step: int
    trainable_parameters: int
    checkpoint_bytes: int
    """One checkpoint on disk."""
    final_bytes: int
    """The final model or adapter on disk."""
    sleep_level: int
    """What an engine with weights of its own does while the trainer trains."""
    prefix_gain: float
    """Tokens of a padded training forward over those computed: G(P+R) / (P+GR)."""
    shorter_bytes: tuple[tuple[str, int], ...]
    """Changes that save memory in the largest phase, and what each saves."""
    step: StepTime | None = None
    """Seconds of a step; None where ``roost pilot`` has not measured this machine."""

    @property
    def peak(self) -> Phase:
        """The largest phase."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def fits(self) -> bool:
        """Whether the largest phase fits what is available."""
        return self.peak.bytes <= self.available_bytes

    def require_fit(self) -> None:
        """Refuse a run that cannot fit.

        Raises:
            ConfigError: naming the phase, its largest term, the bytes short, and what helps most;
                or the cache is set smaller than one sample.
        """
        if self.cache_bytes < self.least_cache_bytes:
            raise ConfigError(
                f"rollout.cache_bytes = {self.cache_bytes}: one sample needs "
                f"{self.least_cache_bytes}. Raise it, or leave it out for what the plan finds."
            )
        if self.fits:
            return
        phase = self.peak
        term = max(phase.terms, key=lambda term: term.bytes)
        changes = "; ".join(f"{what} (saves {gib(saved)})" for what, saved in self.shorter_bytes)
        short = phase.bytes - self.available_bytes
        raise ConfigError(
            f"the run does not fit: the {phase.name} phase needs {gib(phase.bytes)} and "
            f"{gib(self.available_bytes)} are available, {gib(short)} short. Its largest part is "
            f"{term.name}, {gib(term.bytes)} = {term.formula}. What helps most: "
            f"{changes or 'a smaller model'}. Start it all the same with --force."
        )

    def resolve(self, config: RunConfig) -> RunConfig:
        """The configuration with what was chosen for training, which a resumed run needs again:
        the order of sums depends on it."""
        chosen = {
            "micro_batch_tokens": self.micro_batch_tokens,
            "gradient_checkpointing": self.gradient_checkpointing,
        }
        return config.model_copy(update={"train": config.train.model_copy(update=chosen)})

    def short(self) -> list[str]:
        """The plan in a few lines."""
        phases = ", ".join(f"{phase.name} {gib(phase.bytes)}" for phase in self.phases)
        activations_are = "recomputed" if self.gradient_checkpointing else "kept"
        return [
            f"{phases}; {gib(self.available_bytes)} available",
            f"{self.resident_rollouts} of {self.rollouts_per_step} samples decode at once; "
            f"micro-batches of {self.micro_batch_tokens:,} tokens, activations "
            f"{activations_are}; sharing prompts saves up to "
            f"{self.prefix_gain:.2f}x training tokens",
            self.step.line() if self.step else "seconds unknown: `roost pilot` measures them here",
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        phases = [
            {"name": p.name, "bytes": p.bytes, "terms": [asdict(t) for t in p.terms]}
            for p in self.phases
        ]
        apart = ("phases", "shorter_bytes", "step")
        rest = {k: v for k, v in asdict(self).items() if k not in apart}
        step = self.step.as_dict() if self.step else None
        return {"fits": self.fits, "phases": phases, "step": step, **rest}


def plan_embedded(
    config: RunConfig,
    shape: ModelShape,
    *,
    available_bytes: int,
    dtype_bytes: int,
    prompt_tokens: int,
    process_bytes: int = 0,
    device: str = "cpu",
    mean_prompt: float | None = None,
    pilot: Pilot | None = None,
) -> EmbeddedPlan:
    """Plan a run on one device.

    Args:
        config: The run.
        shape: Its model.
        available_bytes: What the device has left for this process.
        dtype_bytes: Of the working precision: 2 or 4.
        prompt_tokens: The longest prompt.
        process_bytes: What the process holds already; counted in every phase.
        device: Its kind, ``cpu`` or ``cuda``.
        mean_prompt: Tokens of a mean prompt; by default those of the longest.
        pilot: What was measured here for this model and method.
    """
    usable = int(HEADROOM * available_bytes) + process_bytes
    run = RunSizes(
        config,
        shape,
        dtype_bytes,
        prompt_tokens,
        process_bytes,
        generate_residual=pilot.generate_residual_bytes if pilot else 0,
        train_residual=pilot.train_residual_bytes if pilot else 0,
    )
    chosen = choose(run, usable, device)
    sizes, cache = chosen.sizes, chosen.cache
    return EmbeddedPlan(
        phases=chosen.phases,
        available_bytes=usable,
        cache_bytes=cache,
        least_cache_bytes=sizes.least_cache(),
        micro_batch_tokens=chosen.micro,
        gradient_checkpointing=sizes.recompute,
        resident_rollouts=sizes.resident_rollouts(cache),
        rollouts_per_step=sizes.rollouts,
        trainable_parameters=sizes.trainable,
        checkpoint_bytes=sizes.trainable * (dtype_bytes + 12),
        final_bytes=sizes.trainable * dtype_bytes,
        sleep_level=sizes.sleep_level,
        prefix_gain=_prefix_gain(prompt_tokens, sizes.completion, config.rollout.generations),
        shorter_bytes=tuple(chosen.savings()),
        step=_step_time(chosen, pilot, mean_prompt or prompt_tokens),
    )


def _step_time(chosen: Choice, pilot: Pilot | None, mean_prompt: float) -> StepTime | None:
    """Seconds where they were measured, of the engine that they were measured with."""
    sizes = chosen.sizes
    if pilot is None or sizes.colocated:
        return None
    resident = sizes.resident_rollouts(chosen.cache)
    return step_time(sizes, pilot, mean_prompt=mean_prompt, resident=resident, micro=chosen.micro)


def _prefix_gain(prompt: int, completion: int, generations: int) -> float:
    """Padded tokens of a group over unique ones, at full length."""
    return generations * (prompt + completion) / (prompt + generations * completion)
