"""vLLM in the trainer's process: an engine with weights of its own, proven before it samples."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from roost.engines.base import BaseEngine, Call, completion_text
from roost.engines.protocol import SampleKey
from roost.engines.vllm.port import Finished, Port, Request
from roost.engines.vllm.state import State, StateMachine
from roost.engines.vllm.weights import CPU_PROOF_BYTES, AdapterWeights, FullWeights
from roost.errors import EngineError
from roost.model.policy import Policy
from roost.samples import FinishReason, Sample, TokenSource
from roost.sync.proof import Proof, check_probe, check_version
from roost.sync.trainer_side import score
from roost.training.parallel import ALONE, Ranks

T = TypeVar("T")


class VllmEngine(BaseEngine):
    """Implements ``roost.engines.protocol.Engine``.

    Invariant: nothing is sampled with weights that were not proven to be the policy's. ``sync``
    sends, compares and probes, and only then is the engine ready; ``generate`` refuses otherwise.

    Args:
        policy: The model that is being trained. Only read.
        tokenizer: Decodes samples; may be None where no text is needed.
        port: vLLM.
        probe: Tokens that both sides score after each sync; at least two.
        cache_bytes: Its key-value cache.
        sleep_level: What it does while the trainer trains: see ``state.LEVELS``.
        ranks: The processes of the run; those that share this engine's shards make the same calls.

    Raises:
        EngineError: the engine's weights cannot be kept in sync with this model's.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer: Any,
        port: Port,
        *,
        probe: Sequence[int],
        cache_bytes: int,
        sleep_level: int = 0,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.proof: Proof | None = None
        """What the last sync has shown; None before the first."""
        self._port = port
        self._probe = list(probe)
        self._cache_bytes = cache_bytes
        self._machine = StateMachine(sleep_level)
        self._ranks = ranks
        self._weights = (AdapterWeights if policy.is_adapter else FullWeights)(policy, port, ranks)
        self._version: int | None = None

    @property
    def peak_bytes(self) -> int:
        """See ``Engine``: the cache is taken whole at the start."""
        return self._cache_bytes

    @property
    def state(self) -> State:
        """What it holds and does."""
        return self._machine.state

    @property
    def version(self) -> int | None:
        """The policy's version that it was last proven to hold; None where it may not sample."""
        return self._version if self.state is State.READY else None

    @property
    def outdated(self) -> bool:
        """See ``Engine``."""
        return self.version != self.policy.version

    def sync(self) -> dict[str, float]:
        """See ``Engine``. Wakes it where it sleeps: weights, then the sync, then the cache.

        Raises:
            EngineError: something did not arrive as it was sent; the engine stays unusable.
        """
        if not self.outdated:
            return {}
        machine, whole = self._machine, self.proof is None or self.state is State.ASLEEP
        if self.state is State.ASLEEP:
            self._port.wake("weights")
            machine.take("wake_weights")
        elif self.state is State.READY:
            machine.take("outdate")
        machine.check("sync")
        start = time.perf_counter()
        sent = self._weights.send()
        sent_s = time.perf_counter() - start
        digest, tensors = self._weights.prove(self._proof_bytes(whole))
        check_version(self.policy.version, self._port.version())
        # The probe needs all shards: nobody waits in it for a rank whose proof has failed.
        self._ranks.gather(None, "the proof of its sync")
        machine.take("sync")
        if self.state is State.WEIGHTS_SYNCED:
            self._port.wake("kv_cache")
            machine.take("wake_cache")
        difference = self._check_probe()
        self._version = self.policy.version
        self.proof = Proof(self.policy.version, digest, tensors, difference)
        return {
            "sync/bytes": sent,
            "sync/send_s": sent_s,
            "sync/proof_s": time.perf_counter() - start - sent_s,
            "sync/tensors_compared": tensors,
            "sync/probe_difference": difference,
        }

    def doubt(self) -> None:
        """Have the next sync compare everything, as the first does."""
        self.proof = None

    def _check_ready(self) -> None:
        """See ``BaseEngine``.

        Raises:
            EngineError: its weights are not the policy's: ``sync`` was not called.
        """
        self._machine.check("generate")
        check_version(self.policy.version, self._port.version())

    def _generate(self, call: Call) -> Iterator[Sample]:
        """See ``BaseEngine``."""
        version, tokenizer = self.version, self.tokenizer
        assert version is not None, "_check_ready has seen it"
        owners = list(call.samples())
        requests = [Request(prompt.token_ids, stream_seed(key)) for prompt, key in owners]
        self._machine.take("generate")
        waiting: dict[str, SampleKey] = {}
        try:
            ids = self._port.submit(requests, call.sampling)
            waiting.update(zip(ids, (key for _, key in owners), strict=True))
            while waiting:
                for finished in self._exchange("samples", self._port.step):
                    key = waiting.pop(finished.request_id)
                    yield as_sample(finished, key, version=version, tokenizer=tokenizer)
        finally:
            if waiting:
                self._port.abort(list(waiting))
            self._machine.take("drain")

    def _exchange(self, what: str, call: Callable[[], T]) -> T:
        """A call in which shards on several ranks exchange what they compute."""
        if self._ranks.tensor_parallel == 1:
            return call()
        with self._ranks.blamed(what):
            return call()

    @property
    def sleeps(self) -> bool:
        """See ``Engine``."""
        return self._machine.level > 0

    def sleep(self) -> None:
        """See ``Engine``.

        Raises:
            EngineError: it is sampling, or its sleep level is 0.
        """
        self._machine.check("sleep")
        self._port.sleep(self._machine.level)
        self._machine.take("sleep")

    def close(self) -> None:
        """See ``Engine``."""
        self._weights.close()
        self._port.close()

    def _proof_bytes(self, whole: bool) -> int | None:
        return CPU_PROOF_BYTES if self.policy.device.type == "cpu" and not whole else None

    def _check_probe(self) -> float:
        """Score the probe on both sides; where they differ the engine is stale again."""
        try:
            trainer = score(self.policy, self._probe)
            engine = self._exchange("the probe", lambda: self._port.score(self._probe))
            return check_probe(trainer, engine, self.policy.dtype)
        except EngineError:
            self._machine.take("outdate")
            raise


def as_sample(finished: Finished, key: SampleKey, *, version: int, tokenizer: Any) -> Sample:
    """A completion as a sample.

    Args:
        finished: What the engine made.
        key: Of which prompt, and which of its completions.
        version: The policy's, which must have sampled each token.
        tokenizer: Decodes it; None leaves the text empty.

    Raises:
        EngineError: a token is of another version.
    """
    stale = sorted(set(finished.versions) - {str(version)})
    if stale:
        check_version(version, stale[0])
    tokens = len(finished.token_ids)
    return Sample(
        prompt_id=key.prompt_id,
        index=key.index,
        token_ids=finished.token_ids,
        logprobs=finished.logprobs,
        kept_mass_logs=[0.0] * tokens,
        finish_reason=FinishReason.STOP if finished.stopped else FinishReason.LENGTH,
        policy_versions=[version] * tokens,
        sources=[TokenSource.MODEL] * tokens,
        text=completion_text(tokenizer, finished.token_ids),
    )


def stream_seed(key: SampleKey) -> int:
    """The seed of one sample's own random generator in the engine: 63 bits of the key's hash."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
