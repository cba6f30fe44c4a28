"""A run in memory that checks are tried on: its parts are those of `roost train`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from roost.engines.protocol import Engine
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.faults import Spoil, SpoilingPort
from roost.engines.vllm.fleet import ServerEngine
from roost.engines.vllm.port import Port
from roost.model.policy import Policy
from roost.rewards import RewardPool, Scored, ScoringReport
from roost.run import checkpoint
from roost.run.display import Display
from roost.run.folder import RunFolder
from roost.run.interrupts import StopSwitch
from roost.run.launch import announce
from roost.run.loop import train_step
from roost.run.prepare import prepare
from roost.run.session import Session, open_session
from roost.samples import Group, Prompt, Sample
from roost.self_check.subject import SavedWeights, Subject, saved_weights
from roost.sync.digest import tensor_digest

Drawn = dict[tuple[int, int], tuple[list[int], list[float]]]
"""Token ids and log-probabilities of samples, by prompt and index."""


class GivenRewards(RewardPool):
    """In place of the reward workers: each sample gets what a check gives it."""

    def __init__(self) -> None:
        self.reward_of: Callable[[Sample], float] = lambda sample: 0.0
        self._scored: list[Scored] = []

    def submit(self, prompt: Prompt, sample: Sample) -> None:
        """See ``RewardPool``."""
        reward = self.reward_of(sample)
        self._scored.append(Scored(prompt.id, sample.index, {"given": reward}, reward, []))

    def drain(self) -> list[Scored]:
        """See ``RewardPool``."""
        scored, self._scored = self._scored, []
        return scored

    def cancel(self) -> None:
        """See ``RewardPool``."""
        self._scored = []

    def close(self) -> None:
        """Nothing to end."""


@dataclass(slots=True)
class Trial:
    """What a check works with. Checks change weights in memory, and nothing on disk."""

    session: Session
    rewards: GivenRewards
    display: Display
    ports: list[SpoilingPort] = field(default_factory=list)
    """Around each vLLM that was connected to."""

    @property
    def policy(self) -> Policy:
        """What is trained."""
        return self.session.policy

    @property
    def engine(self) -> Engine:
        """What samples."""
        return self.session.engine

    @property
    def synced_engine(self) -> VllmEngine | ServerEngine:
        """The engine of a run in which there is something to sync."""
        assert isinstance(self.engine, VllmEngine | ServerEngine)
        return self.engine

    def step(self, reward_of: Callable[[Sample], float], *, rate: float) -> dict[str, float]:
        """One whole step of the run with given rewards; returns its metrics."""
        trainer, before = self.session.trainer, self.session.trainer.config
        train = before.train.model_copy(update={"learning_rate": rate})
        trainer.config = before.model_copy(update={"train": train})
        self.rewards.reward_of = reward_of
        try:
            return train_step(self.session, ScoringReport(), self.display, StopSwitch())
        finally:
            trainer.config = before

    def draw(self) -> list[Group]:
        """Samples of the first prompts: the same ones from the same weights.

        Raises:
            EngineError: the engine was not synced.
        """
        prepared = self.session.prepared
        config = prepared.config
        prompts = prepared.prompts.train[: config.data.prompts_per_step]
        groups = {prompt.id: Group(prompt, []) for prompt in prompts}
        for sample in self.engine.generate(
            prompts, config.rollout.generations, self.session.sampling, seed=config.seed, step=0
        ):
            sample.reward = 0.0
            groups[sample.prompt_id].samples.append(sample)
        return list(groups.values())

    def synced_draw(self) -> list[Group]:
        """The same, after a sync where one is due."""
        self.session.sync()
        return self.draw()

    def weights(self) -> dict[str, str]:
        """Digests of every tensor of the model, and of the optimizer's masters."""
        state = self.session.trainer.optimizer.state_dict()
        masters = {name: t for name, t in state.items() if name.startswith("master/")}
        tensors: dict[str, Tensor] = {**self.policy.module.state_dict(), **masters}
        return {name: tensor_digest(tensor) for name, tensor in tensors.items()}

    @contextmanager
    def spoiling(self, spoil: Spoil) -> Iterator[None]:
        """Within it, what is sent to the engine is spoilt on its way."""
        for port in self.ports:
            port.spoil = spoil
        try:
            yield
        finally:
            for port in self.ports:
                port.spoil = None


def drawn(groups: Sequence[Group]) -> Drawn:
    """What was sampled, to compare bit for bit."""
    samples = (sample for group in groups for sample in group.samples)
    return {(s.prompt_id, s.index): (s.token_ids, s.logprobs) for s in samples}


@contextmanager
def open_trial(subject: Subject, display: Display) -> Iterator[Trial]:
    """Check, load and build what `roost train` would; ended and forgotten afterwards.

    Raises:
        RoostError: it cannot be had; named as `roost train` names it.
    """
    prepared = prepare(subject.config, subject.base_dir, display)
    announce(prepared, display)
    prepared.plan.require_fit()
    saved = saved_weights(subject, prepared.model_fingerprint)
    ports: list[SpoilingPort] = []

    def through(port: Port) -> Port:
        spoiling, seen = SpoilingPort.around(port)
        ports.append(spoiling)
        return seen

    with TemporaryDirectory(prefix="roost-check-") as folder:
        session = open_session(prepared, RunFolder(Path(folder)), None, through=through)
        try:
            if saved is not None:
                _take(session, saved)
                display.say(f"checking {saved.origin}")
            session.pool.close()
            session.pool = rewards = GivenRewards()
            yield Trial(session, rewards, display, ports)
        finally:
            session.close()


def _take(session: Session, saved: SavedWeights) -> None:
    """Weights and masters; moments begin anew, or they would move weights by themselves."""
    trained = session.policy.trainable_parameters()
    # peft leaves the adapter's name out of what it writes.
    names = {name.replace(".default.", "."): name for name in trained}
    tensors = {names.get(name, name): tensor for name, tensor in saved.tensors.items()}
    checkpoint.restore_weights(trained, tensors)
    masters = {f"master/{name}": tensor for name, tensor in tensors.items()}
    session.trainer.optimizer.load_state_dict(masters)
    session.policy.version = saved.version
