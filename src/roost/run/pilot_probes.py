"""What a pilot runs and times: forced samples, whole steps, a forward and backward alone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from roost.rewards import ScoringReport
from roost.run.display import Display
from roost.run.interrupts import StopSwitch
from roost.run.loop import train_step
from roost.run.pilot_speeds import Call, non_negative
from roost.run.prepare import Prepared
from roost.run.session import Session
from roost.samples import Group, Prompt
from roost.training.batch import TrainBatch


@dataclass(slots=True)
class Stopwatch:
    """What a piece of work took."""

    seconds: float = 0.0


@contextmanager
def timed(device: torch.device) -> Iterator[Stopwatch]:
    """Time what happens inside, and all that a GPU was given to do meanwhile."""
    watch = Stopwatch()
    _settle(device)
    start = time.perf_counter()
    yield watch
    _settle(device)
    watch.seconds = time.perf_counter() - start


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
    generations = config.rollout.generations
    with timed(session.prepared.device) as watch:
        made = session.engine.generate(prompts, generations, sampling, seed=config.seed, step=0)
        for sample in made:
            sample.reward = float(sample.index % 2)
            sample.advantage = 2 * sample.reward - 1
            groups[sample.prompt_id].samples.append(sample)
    if calls is not None:
        held = sum(len(prompt.token_ids) for prompt in prompts)
        count = len(prompts) * generations
        passes = -(-count // session.prepared.plan.resident_rollouts)
        context = budget * generations * (held + len(prompts) * budget / 2)
        calls.append(Call(held, passes * budget, count * budget, context, watch.seconds))
    return list(groups.values())


def real_steps(session: Session, display: Display, steps: int) -> list[dict[str, float]]:
    """Metrics of the run's own first steps."""
    report = ScoringReport()
    with StopSwitch() as stop:
        return [train_step(session, report, display, stop) for _ in range(steps)]


def call_of(row: dict[str, float], prepared: Prepared) -> Call:
    """What the engine did in a training step, from its metrics."""
    config, mean = prepared.config, prepared.prompts.report.mean
    tokens = row["tokens/generated"]
    rollouts = config.data.prompts_per_step * config.rollout.generations
    passes = -(-rollouts // prepared.plan.resident_rollouts)
    return Call(
        config.data.prompts_per_step * mean,
        passes * row["completions/max_length"],
        tokens,
        tokens * (mean + tokens / rollouts / 2),
        row["time/generate_s"],
    )


def training_seconds(session: Session, groups: Sequence[Group]) -> dict[str, float]:
    """Seconds of a token, of a pack and of the optimizer, by whole updates and a small one."""
    trainer, plan = session.trainer, session.prepared.plan
    few = [replace(groups[0], samples=groups[0].samples[:2])]
    points = [_accumulated(session, part) for part in (few, groups[:1], groups)]
    work = np.array([[tokens, packs] for tokens, packs, _ in points])
    seconds = np.array([taken for *_, taken in points])
    token, pack = non_negative(work / seconds[:, None], np.ones(len(points)))
    with timed(session.prepared.device) as watch:
        trainer.optimizer.step(0.0)
    optimizer = watch.seconds / plan.trainable_parameters
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
    with timed(session.prepared.device) as watch:
        trainer.accumulate(batch, samples, sums)
    packs = batch.packs(samples, trainer.micro_batch_tokens)
    return sums["computed"], len(packs), watch.seconds


@contextmanager
def recomputing(session: Session) -> Iterator[None]:
    """Activations are computed again in the backward, for a while."""
    base: Any = session.policy.base
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        base.gradient_checkpointing_disable()


def fullest_pack(session: Session, groups: Sequence[Group]) -> int:
    """Tokens of the largest micro-batch of an update on some groups, a divided prompt included."""
    batch = TrainBatch.of(groups, session.prepared.config)
    sizes = []
    for part in batch.parts:
        for pack in batch.packs(part, session.trainer.micro_batch_tokens):
            prompt = 0
            if pack.divided is not None:
                prompt = len(batch.groups[pack.divided].prompt.token_ids)
            sizes.append(len(pack) + prompt)
    return max(sizes)
