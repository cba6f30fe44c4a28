"""The training loop. ``train_step`` is one GRPO step, top to bottom."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import fmean

from roost.algorithm.advantages import assign_advantages
from roost.rewards import ScoringReport
from roost.run import samples_file
from roost.run.agreement import check_agreement, check_versions
from roost.run.batches import Ahead, Batch
from roost.run.display import Display, figure, step_line
from roost.run.evaluation import EvalResult, evaluate
from roost.run.interrupts import Interrupted, StopSwitch
from roost.run.rollout import finish_scoring, gather_scored, gather_trainer_logprobs
from roost.run.session import Session
from roost.samples import Group, Sample


def run(session: Session, display: Display, stop: StopSwitch) -> bool:
    """Train to the last step. Returns False when a stop was asked for; then all is saved.

    Raises:
        RewardError: no sample of a step could be scored.
        CheckpointError: the disk is full.
    """
    steps = session.prepared.config.train.steps
    report = ScoringReport()
    display.begin("training", steps, done=session.step)
    try:
        while True:
            _evaluate_if_due(session, display, stop)
            if session.step == steps:
                break
            _step_or_rewind(session, report, display, stop)
            _checkpoint_if_due(session, display)
    except Interrupted:
        _save(session, display)
        return False
    finally:
        display.end()
    session.save()
    session.save_final()
    return True


def _step_or_rewind(
    session: Session, report: ScoringReport, display: Display, stop: StopSwitch
) -> None:
    """One step; where a stop cuts it short, the prompts it took are given back."""
    before = session.cursor.state_dict()
    try:
        metrics = train_step(session, report, display, stop)
    except Interrupted:
        session.cursor.load_state_dict(before)
        raise
    display.advance(step_line(metrics))


def train_step(
    session: Session, report: ScoringReport, display: Display, stop: StopSwitch
) -> dict[str, float]:
    """Prompts, samples, rewards, advantages, update: one step and its metrics."""
    config, ledger = session.prepared.config, session.ledger
    start = time.perf_counter()
    ledger.begin_step()

    if session.ahead is None:
        sync = _sync(session, display)
        batch = _sample(session, display, stop)
    else:
        batch = _sampled_ahead(session, display, stop)
        sync = _sync(session, display)
    groups = batch.groups
    scoring = report.add(batch.scores)
    for message in scoring.messages:
        display.warn(message)
    _sample_ahead(session)

    display.waiting_for("training")
    check_versions(groups, session.policy.version, config)
    with ledger.phase("train"):
        rewards = assign_advantages(groups, config.loss.scale_rewards)
        update = session.trainer.update(groups)

    session.step += 1
    metrics = {
        "step": session.step,
        **rewards.metrics(),
        **scoring.metrics(),
        **completion_metrics(groups),
        **update,
        **sync,
        **batch.metrics(),
        **session.phases(),
        "policy_version": session.policy.version,
        "step_time": time.perf_counter() - start,
    }
    session.check_ranks()
    session.record(metrics)
    check_agreement(metrics, session.trainer.mismatch, session.policy.dtype)
    _write_samples(session, groups)
    return metrics


def _sync(session: Session, display: Display) -> dict[str, float]:
    display.waiting_for("the engine's weights")
    return session.sync()


def _sample(session: Session, display: Display, stop: StopSwitch) -> Batch:
    """The step's batch, from the weights as they are."""
    with session.ledger.phase("generate"):
        rollout = session.ask(session.step)
        groups = rollout.collect(stop, SampleCounter(display, rollout.asked))
    session.rest()
    display.waiting_for("rewards")
    with session.ledger.phase("reward"):
        scores = finish_scoring(session.pool, groups)
        groups, scores = gather_scored(session.ranks, rollout.prompts, groups, scores)
    return Batch(session.step, groups, scores)


def _sampled_ahead(session: Session, display: Display, stop: StopSwitch) -> Batch:
    """The step's batch, sampled while the step before was trained; what is not there is waited for.

    A stop leaves it for the checkpoint: the weights that it was sampled from are gone.
    """
    if isinstance(session.ahead, Ahead):
        display.waiting_for("the samples of this step")
        with session.ledger.phase("generate"):
            session.ahead.wait()
        display.waiting_for("rewards")
    with session.ledger.phase("reward"):
        batch = session.settle()
    assert batch is not None, "something was ahead"
    stop.check()
    session.ahead = None
    return batch


def _sample_ahead(session: Session) -> None:
    """Ask for the next step's batch, where one is sampled ahead."""
    config = session.prepared.config
    following = session.step + 1
    if config.rollout.staleness and following < config.train.steps:
        session.ahead = Ahead(session.ask(following), session.pool)


class SampleCounter:
    """Shows how many of a step's samples have finished."""

    def __init__(self, display: Display, total: int) -> None:
        self._display = display
        self._total = total
        self._done = 0
        display.waiting_for(f"sampling 0/{total}")

    def __call__(self, sample: Sample) -> None:
        """Count one more."""
        self._done += 1
        self._display.waiting_for(f"sampling {self._done}/{self._total}")


def completion_metrics(groups: list[Group]) -> dict[str, float]:
    """Lengths and endings of a batch's completions, under TRL's names."""
    samples = [sample for group in groups for sample in group.samples]
    lengths = [len(sample.token_ids) for sample in samples]
    ended = [len(sample.token_ids) for sample in samples if not sample.truncated]
    return {
        "completions/mean_length": fmean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": 1.0 - len(ended) / len(samples),
        "completions/mean_terminated_length": fmean(ended) if ended else 0.0,
        "completions/min_terminated_length": min(ended, default=0),
        "completions/max_terminated_length": max(ended, default=0),
        "tokens/generated": sum(lengths),
    }


def _checkpoint_if_due(session: Session, display: Display) -> None:
    config = session.prepared.config
    every = config.output.checkpoint_every
    # The last step is saved by the loop's end.
    if every and session.step % every == 0 and session.step < config.train.steps:
        _save(session, display)


def _save(session: Session, display: Display) -> None:
    if isinstance(session.ahead, Ahead):
        display.waiting_for("the next step's samples, which the checkpoint holds")
    session.settle()
    display.waiting_for("writing a checkpoint")
    session.save()


def _evaluate_if_due(session: Session, display: Display, stop: StopSwitch) -> None:
    """Evaluate at both ends and every so many steps, each step once, resumed or not."""
    config, prompts = session.prepared.config, session.prepared.prompts.held_out
    step, every = session.step, config.eval.every
    due = step in (0, config.train.steps) or (every > 0 and step % every == 0)
    if not prompts or not due or str(step) in session.evaluations:
        return
    session.settle()
    display.waiting_for("held-out evaluation")
    session.sync()
    temperature = config.eval.temperature
    sampling = session.sampling
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    with session.ledger.phase("evaluate"):
        result = evaluate(
            session.engine,
            session.pool,
            prompts,
            config.eval.generations,
            sampling,
            seed=config.seed,
            stop=stop,
            ranks=session.ranks,
        )
    session.evaluations[str(step)] = result.as_dict()
    display.say(_eval_line(step, result))


def _eval_line(step: int, result: EvalResult) -> str:
    return (
        f"held out, after step {step}: reward {figure(result.reward)}, "
        f"pass@1 {result.pass_at_1:.3f} on {result.prompts} prompts"
    )


def _write_samples(session: Session, groups: list[Group]) -> None:
    every = session.prepared.config.output.samples_every
    if not every or session.step % every:
        return
    gather_trainer_logprobs(session.ranks, groups)
    if session.ranks.leads:
        samples_file.write(session.folder.samples, session.step, groups)
