"""The plan of a run on one device, with either engine: bytes by phase and term.

The phases share the device in turn, so what must fit is the largest of them, not their sum.
``embedded_sizes`` counts the bytes; ``embedded_choice`` chooses what the run leaves open.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from roost.config import RunConfig
from roost.errors import ConfigError
from roost.planner.embedded_changes import FittingChange, fitting_changes
from roost.planner.embedded_choice import Choice, choose
from roost.planner.embedded_sizes import RunSizes
from roost.planner.embedded_time import StepTime, step_time
from roost.planner.measured import Pilot, recipe_digest
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
    """Of one engine."""
    trainable_parameters: int
    checkpoint_bytes: int
    """One checkpoint on disk."""
    final_bytes: int
    """The final model or adapter on disk."""
    sleep_level: int
    """What an engine with weights of its own does while the trainer trains."""
    keeps_cache: bool
    """Whether the embedded engine keeps its cache while the trainer trains."""
    packs_weights: bool
    """Whether the embedded engine decodes with a packed copy of the weights."""
    prefix_gain: float
    """Tokens of a padded training forward over those computed: G(P+R) / (P+GR)."""
    peak: Phase
    """The largest phase of a device that ``available_bytes`` are of."""
    suggestions: tuple[FittingChange, ...]
    """Where it does not fit, the cheapest changes that make it fit."""
    sizes: RunSizes
    """What the bytes are of."""
    step: StepTime | None = None
    """Seconds of a step; None where ``roost pilot`` has not measured this machine."""

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
        changes = "; ".join(
            f"{one.change} (leaves {gib(one.headroom_bytes)})" for one in self.suggestions
        )
        helps = f"What makes it fit, the cheapest first: {changes}."
        if not changes:
            helps = "No change of the recipe makes it fit: take a smaller model, or more memory."
        short = phase.bytes - self.available_bytes
        raise ConfigError(
            f"the run does not fit: the {phase.name} phase needs {gib(phase.bytes)} and "
            f"{gib(self.available_bytes)} are available, {gib(short)} short. Its largest part is "
            f"{term.name}, {gib(term.bytes)} = {term.formula}. {helps} "
            "Start it all the same with --force."
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
        apart = ("phases", "peak", "suggestions", "sizes", "step")
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        rest["suggestions"] = [asdict(one) for one in self.suggestions]
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
    engines: int = 1,
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
        engines: Rollout engines of the run, which share its samples.
    """
    usable = int(HEADROOM * available_bytes) + process_bytes
    run = RunSizes(
        config, shape, dtype_bytes, prompt_tokens, process_bytes, device, engines=engines
    )
    return _plan(run, usable, pilot, mean_prompt or prompt_tokens)


def plan_again(plan: EmbeddedPlan, pilot: Pilot, mean_prompt: float) -> EmbeddedPlan:
    """The same run on the same device of which more is known now."""
    return _plan(plan.sizes, plan.available_bytes, pilot, mean_prompt)


def _plan(run: RunSizes, usable: int, pilot: Pilot | None, mean_prompt: float) -> EmbeddedPlan:
    if pilot is not None:
        load = pilot.workloads.get(recipe_digest(run.config))
        run = replace(
            run,
            largest_micro_batch=load.at_once if load else 0,
            generate_residual=pilot.generate_residual_bytes,
            train_residual=pilot.train_residual_bytes,
        )
    chosen = choose(run, usable)
    sizes, cache = chosen.sizes, chosen.cache
    return EmbeddedPlan(
        phases=chosen.phases,
        available_bytes=chosen.available,
        cache_bytes=cache,
        least_cache_bytes=sizes.least_cache(),
        micro_batch_tokens=chosen.micro,
        gradient_checkpointing=sizes.recompute,
        resident_rollouts=sizes.resident_rollouts(cache),
        rollouts_per_step=sizes.rollouts,
        trainable_parameters=sizes.trainable,
        checkpoint_bytes=sizes.trainable * (sizes.dtype_bytes + 12),
        final_bytes=sizes.trainable * sizes.dtype_bytes,
        sleep_level=sizes.sleep_level,
        keeps_cache=sizes.kept_cache > 0,
        packs_weights=sizes.packed,
        prefix_gain=_prefix_gain(sizes),
        peak=chosen.peak,
        suggestions=() if chosen.headroom >= 0 else tuple(fitting_changes(run, usable)),
        sizes=sizes,
        step=_step_time(chosen, pilot, mean_prompt),
    )


def _step_time(chosen: Choice, pilot: Pilot | None, mean_prompt: float) -> StepTime | None:
    """Seconds where they were measured."""
    sizes = chosen.sizes
    if pilot is None:
        return None
    resident = sizes.resident_rollouts(chosen.cache)
    return step_time(sizes, pilot, mean_prompt=mean_prompt, resident=resident, micro=chosen.micro)


def _prefix_gain(sizes: RunSizes) -> float:
    """Padded tokens of a group over unique ones, at full length."""
    prompt, completion = sizes.prompt, sizes.completion
    generations = sizes.config.rollout.generations
    return generations * (prompt + completion) / (prompt + generations * completion)
