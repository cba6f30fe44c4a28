"""Bytes of a run on one device, term by term: the weights and states that every phase holds, what
decoding holds besides, and what a forward and backward hold. Every term carries its formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from roost.config import RunConfig
from roost.planner import activations, colocated
from roost.planner.model_shape import ModelShape
from roost.planner.terms import Phase, Term


@dataclass(frozen=True)
class RunSizes:
    """A run, its model, and the choices that its bytes depend on."""

    config: RunConfig
    shape: ModelShape
    dtype_bytes: int
    """Of the working precision: 2 or 4."""
    prompt: int
    """Tokens of the longest prompt."""
    process: int
    """Bytes that the process holds already; counted in every phase."""
    recompute: bool = False
    """Whether the backward computes activations again."""
    sleep_level: int = 0
    """What an engine with weights of its own does while the trainer trains."""
    awake_cache: int = 0
    """Bytes of cache of an engine that stays awake while the trainer trains."""
    generate_residual: int = 0
    """Bytes that the pilot measured beyond these terms while decoding; may be negative."""
    train_residual: int = 0
    """The same of a forward and backward."""

    @cached_property
    def completion(self) -> int:
        """Most tokens of a completion."""
        return self.config.rollout.max_completion_tokens

    @cached_property
    def sequence(self) -> int:
        """Tokens of the longest sample and its prompt."""
        return self.prompt + self.completion

    @cached_property
    def rollouts(self) -> int:
        """Samples of a step."""
        return self.config.data.prompts_per_step * self.config.rollout.generations

    @cached_property
    def adapter(self) -> int:
        """Parameters of the adapter; 0 where all weights are trained."""
        if self.config.train.method != "lora":
            return 0
        return self.shape.adapter_parameters(self.config.lora.rank, self.config.lora.targets)

    @cached_property
    def trainable(self) -> int:
        """Parameters that the optimizer has states for."""
        return self.adapter or self.shape.parameters

    @cached_property
    def kv_token(self) -> int:
        """Bytes of one token in the key-value cache."""
        return self.shape.kv_elements_per_token() * self.dtype_bytes

    @cached_property
    def colocated(self) -> bool:
        """Whether the engine has weights of its own beside the trainer's."""
        return self.config.rollout.engine == "vllm"

    def recomputing(self, recompute: bool) -> RunSizes:
        """The same run with activations computed again, or kept."""
        return replace(self, recompute=recompute)

    def generate_phase(self, cache: int) -> Phase:
        """All that is held while samples are decoded with so many bytes of cache."""
        residual = _residual(self.generate_residual)
        return Phase("generate", (*self._resident(), *self._generate(cache), *residual))

    def train_phase(self, micro: int) -> Phase:
        """All that is held in a forward and backward of ``micro`` tokens."""
        residual = _residual(self.train_residual)
        return Phase("train", (*self._resident(), *self._train(micro), *residual))

    def _resident(self) -> Iterator[Term]:
        """What is held in every phase."""
        if self.process:
            yield Term("process", self.process, "measured: Python and libraries")
        width, parameters = self.dtype_bytes, self.shape.parameters + self.adapter
        yield Term("weights", width * parameters, f"{width} B x {parameters:,} parameters")
        masters = 0 if width == 4 else 4
        states = masters + 4 + 8
        yield Term(
            "optimizer",
            states * self.trainable,
            f"({masters} master + 4 gradient + 8 moments) B x {self.trainable:,} trained",
        )
        if self.config.loss.beta > 0 and not self.adapter:
            yield Term("reference", width * parameters, f"{width} B x {parameters:,} parameters")

    def _generate(self, cache: int) -> Iterator[Term]:
        """What decoding holds besides."""
        if self.colocated:
            yield from self._engine(cache)
            yield colocated.bucket_term(self.shape, self.dtype_bytes, self.adapter)
        else:
            yield Term("key-value cache", cache, f"bound; {self.kv_token:,} B a token")
        rows, vocabulary = self.resident_rollouts(cache), self.shape.vocabulary
        yield Term("logits", 12 * rows * vocabulary, f"3 x 4 B x {rows} rows x {vocabulary:,}")

    def _train(self, micro: int) -> Iterator[Term]:
        """What a forward and backward of ``micro`` tokens holds besides."""
        if self.colocated and self.sleep_level == 0:
            yield from self._engine(self.awake_cache)
        size = self.shape, self.dtype_bytes
        per_token = activations.token_bytes(*size, checkpointing=self.recompute)
        formula = activations.formula(*size, micro, checkpointing=self.recompute)
        yield Term("activations", micro * per_token, formula)
        group = self.prompt + self.config.rollout.generations * self.completion
        if micro and micro < group:
            yield Term(
                "shared prompt",
                (self.kv_token + self.kv_token * 4 // self.dtype_bytes) * self.prompt,
                f"keys and values, {self.kv_token:,} B a token, and their float32 gradient x "
                f"{self.prompt:,} tokens",
            )
        yield Term(
            "log-probabilities", activations.LOGPROB_TILE_BYTES, "3 float32 tiles of 1,024 x 8,192"
        )
        if not self.adapter:
            largest = self.dtype_bytes * self.shape.embedding_parameters
            yield Term("gradient in flight", largest, "the embedding's, in working precision")

    def _engine(self, cache: int) -> Iterator[Term]:
        return colocated.engine_terms(
            self.shape, self.dtype_bytes, cache, self.kv_token, self.adapter
        )

    def group_bytes(self) -> int:
        """Cache of one prompt and all its completions at full length."""
        generations = self.config.rollout.generations
        return self.kv_token * (slot(self.prompt) + generations * slot(self.completion))

    def resident_rollouts(self, cache: int) -> int:
        """Samples that decode at once, at full length."""
        generations = self.config.rollout.generations
        fit = max(1, cache * generations // self.group_bytes())
        if self.colocated:
            fit = max(1, cache // self._flat_bytes(1) - 1)
        bound = self.config.rollout.max_sequences or self.rollouts
        return min(fit, bound, self.rollouts)

    def wanted_cache(self) -> int:
        """Cache of all samples of a step, or of an evaluation."""
        evaluated = self.config.eval.prompts * self.config.eval.generations
        if self.colocated:
            # One block is never used; a whole sequence more keeps the count simple.
            return self._flat_bytes(max(self.rollouts, evaluated) + 1)
        group_caches = self.config.data.prompts_per_step * self.group_bytes()
        return max(group_caches, self._flat_bytes(evaluated))

    def least_cache(self) -> int:
        """Cache of one sample of the longest prompt."""
        return self._flat_bytes(2 if self.colocated else 1)

    def _flat_bytes(self, samples: int) -> int:
        """Cache of samples that share no prompt."""
        if self.colocated:
            return self.kv_token * samples * colocated.sequence_tokens(self.sequence)
        return self.kv_token * samples * (slot(self.prompt) + slot(self.completion))


def _residual(count: int) -> Iterator[Term]:
    if count:
        yield Term("residual", count, "measured here by `roost pilot`: peak less the other terms")


def slot(tokens: int) -> int:
    """Cache places of a sequence (``roost.model.flash.padded``, which this module cannot import
    without torch): whole chunks of 256, and of the rest the next of 32, 64, 96, 128, 256."""
    whole, rest = divmod(tokens, 256)
    return 256 * whole + (256 if rest > 128 else -(-rest // 32) * 32)
