"""Roost's step, as ``roost train`` does it: the loop's own ``train_step``, metrics and all.

With its defaults, and as rivals of those with the other engine and modes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from roost.bench.channel import Channel
from roost.bench.job import LORA_ALPHA, LORA_RANK, Job
from roost.bench.memory import PeakMemory
from roost.bench.rewards import REFERENCE
from roost.bench.turns import Turn
from roost.config.loading import build_config
from roost.rewards import ScoringReport
from roost.run.claim import Claim
from roost.run.display import QuietDisplay
from roost.run.interrupts import StopSwitch
from roost.run.loop import train_step
from roost.run.prepare import prepare
from roost.run.session import Session, open_session

_SERVED = {"engine": "vllm", "mode": "server", "launch": True}
ENGINES: dict[str, dict[str, Any]] = {
    "roost": {},
    "roost-vllm": {"engine": "vllm"},
    "roost-server": _SERVED,
    "roost-ahead": {**_SERVED, "staleness": 1},
}
"""Of each name, what it changes in ``rollout``."""


def serve(job: Job, channel: Channel) -> None:
    """Train a step a turn."""
    prepared = prepare(build_config(sections(job)), Path(job.folder), QuietDisplay())
    prepared.plan.require_fit()
    memory = PeakMemory(prepared.device)
    with Claim(Path(job.folder) / "run") as claim:
        session = open_session(prepared, claim.folder, None)
        claim.keep()
    memory.note()
    report, display, stop = ScoringReport(), QuietDisplay(), StopSwitch()
    try:
        channel.ready(settings(session, job))
        for _ in channel.goes():
            start = time.perf_counter()
            metrics = train_step(session, report, display, stop)
            channel.report(turn_of(metrics, time.perf_counter() - start, memory, session))
    finally:
        session.close()


def sections(job: Job) -> dict[str, Any]:
    """The recipe: all that is not the workload's, or the engine's, is Roost's default."""
    engine = ENGINES.get(job.name, {})
    # A last step that nothing follows samples nothing ahead: it is not among those that count.
    steps = job.turns + engine.get("staleness", 0)
    return {
        "model": job.model,
        "data": {"source": job.rows, "prompts_per_step": job.prompts, "shuffle": False},
        "rollout": {
            "generations": job.generations,
            "max_completion_tokens": job.completion_tokens,
            **engine,
        },
        "rewards": [REFERENCE],
        "train": {"method": job.method, "steps": steps},
        "lora": {"rank": LORA_RANK, "alpha": LORA_ALPHA},
        "eval": {"prompts": 0},
    }


def settings(session: Session, job: Job) -> dict[str, Any]:
    """What it runs with, for all to read."""
    train, rollout = session.prepared.config.train, session.prepared.config.rollout
    return {
        "weights": str(session.policy.dtype).removeprefix("torch."),
        "device": session.policy.device.type,
        "method": train.method,
        "generation": rollout.engine,
        **ENGINES[job.name],
        "temperature": rollout.temperature,
        "micro_batch_tokens": session.trainer.micro_batch_tokens,
        "gradient_checkpointing": train.gradient_checkpointing,
        "optimizer": f"{train.optimizer}, float32 states",
        "learning_rate": train.learning_rate,
        "threads": job.threads,
    }


def turn_of(metrics: dict[str, float], step_s: float, memory: PeakMemory, session: Session) -> Turn:
    """A turn from the metrics of its step."""
    generate, reward = metrics["time/generate_s"], metrics["time/reward_s"]
    peaks = [value for name, value in metrics.items() if name.endswith("_peak_bytes")]
    config = session.prepared.config
    return Turn(
        step_s=step_s,
        generate_s=generate,
        reward_s=reward,
        train_s=step_s - generate - reward,
        sync_s=metrics.get("time/sync_s", 0.0) + metrics.get("time/sleep_s", 0.0),
        proof_s=metrics.get("sync/proof_s", 0.0),
        generated_tokens=int(metrics["tokens/generated"]),
        trained_tokens=int(metrics["tokens/trained"]),
        completions=config.data.prompts_per_step * config.rollout.generations,
        peak_bytes=memory.note(max(peaks)),
    )
