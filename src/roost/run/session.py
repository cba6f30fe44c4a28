"""A run in memory: its parts, how they are put together, and how they are saved."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from roost.config import RunConfig
from roost.config.loading import dump_toml
from roost.data.cursor import PromptCursor
from roost.engines.embedded import stop_token_ids
from roost.engines.protocol import Engine, SamplingParams
from roost.engines.vllm.port import Through, directly
from roost.model import loading
from roost.model.policy import Policy
from roost.rewards import RewardPool
from roost.run import checkpoint, environment
from roost.run.batches import Ahead, Batch
from roost.run.checkpoint import Checkpoint
from roost.run.engines import build_engine
from roost.run.folder import RunFolder, write_json
from roost.run.ledger import Ledger
from roost.run.metrics import MetricsLog
from roost.run.prepare import Prepared
from roost.run.rollout import Rollout
from roost.run.trackers import Tracker, open_trackers
from roost.training.adapters import add_adapter, load_adapter
from roost.training.parallel import ALONE, Ranks
from roost.training.trainer import Trainer

EQUAL_EVERY = 10
"""Steps between comparisons of the ranks' weights, and after the first: a pass over them each."""


@dataclass(slots=True)
class Session:
    """Owns the parts of a run. Each part owns its own state; the step count is owned here."""

    prepared: Prepared
    folder: RunFolder
    policy: Policy
    cursor: PromptCursor
    engine: Engine
    pool: RewardPool
    trainer: Trainer
    ledger: Ledger
    log: MetricsLog
    trackers: list[Tracker]
    sampling: SamplingParams
    ranks: Ranks = ALONE
    """Rank 0 alone writes the folder."""
    step: int = 0
    """Steps completed."""
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Held-out results by the step they were taken after."""
    ahead: Ahead | Batch | None = None
    """The next step's batch, where it is sampled ahead: on its way, or all there."""

    def close(self) -> None:
        """Stop workers, engine and trackers."""
        if isinstance(self.ahead, Ahead):
            self.ahead.cancel()
        self.pool.close()
        self.engine.close()
        for tracker in self.trackers:
            tracker.close()

    def ask(self, step: int) -> Rollout:
        """Ask the engine for the batch of the next prompts, as it is now; ``step`` are completed
        when it is trained."""
        config = self.prepared.config
        return Rollout(
            self.engine,
            self.pool,
            self.cursor.next_batch(),
            config.rollout.generations,
            self.sampling,
            seed=config.seed,
            step=step,
            ranks=self.ranks,
        )

    def settle(self) -> Batch | None:
        """Have what is sampled ahead all there: until then engine and pool are its own.

        Raises:
            Exception: whatever ended its sampling or scoring.
        """
        if isinstance(self.ahead, Ahead):
            self.ahead = self.ahead.batch()
        return self.ahead

    def sync(self) -> dict[str, float]:
        """Bring the engine to the policy's weights, measured as a phase where it has its own."""
        if not self.engine.outdated:
            return {}
        with self.ledger.phase("sync"):
            return self.engine.sync()

    def rest(self) -> None:
        """Let the engine sleep while the trainer trains, where it does."""
        if self.engine.sleeps:
            with self.ledger.phase("sleep"):
                self.engine.sleep()

    def phases(self) -> dict[str, float]:
        """Seconds and peak bytes of the step's phases, of the rank that took most."""
        mine = self.ledger.step_metrics()
        return self.ranks.sum(mine, mine, "measurements")

    def check_ranks(self) -> None:
        """See now and then that all ranks have made the same steps.

        Raises:
            RoostError: their weights differ.
        """
        if self.step == 1 or self.step % EQUAL_EVERY == 0:
            self.ranks.check_equal(self.policy.trainable_parameters(), f"after step {self.step}")

    def record(self, metrics: dict[str, float]) -> None:
        """Add a row to metrics.jsonl and the trackers."""
        if not self.ranks.leads:
            return
        self.log.append(metrics)
        for tracker in self.trackers:
            tracker.log(self.step, metrics)

    def save(self) -> None:
        """Write a checkpoint of the state after ``self.step`` steps: of all ranks, which are equal.

        Raises:
            CheckpointError: the disk is full.
            RoostError: the ranks' weights differ.
        """
        self.ranks.check_equal(self.policy.trainable_parameters(), f"after step {self.step}")
        if not self.ranks.leads:
            return
        # No later run could sample it again: the weights that it came from are gone.
        ahead = self.settle()
        config = self.prepared.config
        weights = self.policy.trainable_parameters()
        state = {
            "step": self.step,
            "policy_version": self.policy.version,
            "cursor": self.cursor.state_dict(),
            "trainer": self.trainer.counters(),
            "evaluations": self.evaluations,
            "ahead": None if ahead is None else ahead.state_dict(),
            "model_fingerprint": self.prepared.model_fingerprint,
            "data_fingerprint": self.prepared.data_fingerprint,
        }
        point = Checkpoint(self.step, dict(weights), self.trainer.optimizer.state_dict(), state)
        checkpoint.save(self.folder.checkpoints, point, config.output.keep_checkpoints)

    def restore(self, point: Checkpoint) -> None:
        """Continue from a checkpoint.

        Raises:
            CheckpointError: it is of another set of weights.
        """
        checkpoint.restore_weights(self.policy.trainable_parameters(), point.weights)
        self.trainer.optimizer.load_state_dict(point.optimizer)
        self.trainer.load_counters(point.state["trainer"])
        self.cursor.load_state_dict(point.state["cursor"])
        self.policy.version = point.state["policy_version"]
        self.evaluations = point.state["evaluations"]
        if ahead := point.state.get("ahead"):
            self.ahead = Batch.of(ahead, self.prepared.prompts.train)
        self.step = point.step

    def save_final(self) -> None:
        """Write ``final/``: the model or adapter with tokenizer and chat template.

        It loads with ``AutoModelForCausalLM`` or ``PeftModel``.
        """
        if not self.ranks.leads:
            return
        module: Any = self.policy.module
        with loading.quiet_transformers():
            module.save_pretrained(self.folder.final)
            self.prepared.tokenizer.save_pretrained(self.folder.final)


def open_session(
    prepared: Prepared,
    folder: RunFolder,
    point: Checkpoint | None,
    ranks: Ranks = ALONE,
    through: Through = directly,
) -> Session:
    """Load the weights and build every part; with a checkpoint, continue from it.

    What has been started ends again where a later part cannot be had.

    Args:
        prepared: The run.
        folder: Where it is written.
        point: To continue from.
        ranks: The processes that train it.
        through: What is put around each vLLM, for tests of the sync.
    """
    config = prepared.config
    with ExitStack() as started:
        trackers = open_trackers(
            config.output.trackers if ranks.leads else [], folder.root, config.model_dump()
        )
        for tracker in trackers:
            started.callback(tracker.close)
        policy = load_policy(prepared)
        trainer = _build_trainer(prepared, policy, ranks)
        engine = build_engine(prepared, policy, ranks, through)
        started.callback(engine.close)
        session = Session(
            prepared=prepared,
            folder=folder,
            policy=policy,
            cursor=PromptCursor(
                prepared.prompts.train,
                config.data.prompts_per_step,
                shuffle=config.data.shuffle,
                seed=config.seed,
            ),
            engine=engine,
            pool=started.enter_context(build_pool(prepared)),
            trainer=trainer,
            ledger=Ledger(prepared.device),
            log=_open_log(folder, point, ranks),
            trackers=trackers,
            sampling=training_sampling(prepared, policy),
            ranks=ranks,
        )
        if point is not None:
            session.restore(point)
        ranks.check_equal(dict(policy.module.named_parameters()), "before the first step")
        started.pop_all()
    return session


def _build_trainer(prepared: Prepared, policy: Policy, ranks: Ranks) -> Trainer:
    reference = None
    if prepared.config.loss.beta > 0 and not policy.is_adapter:
        reference = load_reference(prepared)
    return Trainer(
        policy,
        prepared.config,
        micro_batch_tokens=prepared.plan.micro_batch_tokens,
        reference=reference,
        ranks=ranks,
    )


def _open_log(folder: RunFolder, point: Checkpoint | None, ranks: Ranks) -> MetricsLog:
    # Opening cuts off what a resumed run does again, which rank 0 alone may write.
    return MetricsLog(folder.metrics, (point.step if point else 0) if ranks.leads else None)


def load_policy(prepared: Prepared, adapter: Path | None = None) -> Policy:
    """The policy: with the saved adapter that is given, or a new one where the run trains one."""
    config = prepared.config
    module = loading.load_module(
        prepared.source, prepared.model_config, prepared.dtype, prepared.device
    )
    if adapter is not None:
        module = load_adapter(module, adapter)
    elif config.train.method == "lora":
        module = add_adapter(module, config.lora, seed=config.seed)
    return Policy(module)


def load_reference(prepared: Prepared) -> Policy:
    """A frozen copy of the starting model, for the KL of full training."""
    module = loading.load_module(
        prepared.source, prepared.model_config, prepared.dtype, prepared.device
    )
    module.requires_grad_(False)
    return Policy(module)


def build_pool(prepared: Prepared) -> RewardPool:
    """The reward workers, started."""
    settings = prepared.config.rewards
    return RewardPool(
        prepared.rewards,
        deadline_s=settings.deadline_s,
        memory_bytes=settings.memory_bytes or None,
        workers=settings.workers,
    )


def training_sampling(prepared: Prepared, policy: Policy) -> SamplingParams:
    """How training samples are drawn."""
    rollout = prepared.config.rollout
    return SamplingParams(
        max_completion_tokens=rollout.max_completion_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        stop=tuple(rollout.stop),
        stop_token_ids=stop_token_ids(policy, prepared.tokenizer),
    )


def write_config(config: RunConfig, folder: RunFolder) -> None:
    """Write config.toml: a reader sees the old file or the new one, never a part."""
    beside = folder.config.with_name(".config.toml.part")
    beside.write_text(dump_toml(config), encoding="utf-8")
    beside.replace(folder.config)


def write_description(prepared: Prepared, folder: RunFolder) -> None:
    """Write environment.json, data.json and config.toml of a new run.

    The last makes the folder a run, which resume needs the first for too: so it comes last.
    """
    write_json(
        folder.environment,
        environment.describe(
            prepared.config.seed,
            prepared.device,
            prepared.model_fingerprint,
            prepared.base_dir,
            prepared.rewards,
        ),
    )
    write_json(folder.data, asdict(prepared.prompts.report))
    write_config(prepared.config, folder)
