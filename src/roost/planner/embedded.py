"""The plan of a run on one device, with either engine: bytes by phase and term.

The phases share the device in turn, so what must fit is the largest of them, not their sum. Every
term carries its formula.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

from roost.config import RunConfig
from roost.errors import ConfigError
from roost.planner import activations, colocated
from roost.planner.model_shape import ModelShape
from roost.planner.terms import Phase, Term, gib

HEADROOM = 0.9
"""Share of the available memory that a plan may use."""
MICRO_BATCH_TOKENS = {"cpu": 1024, "cuda": 8192}
"""Tokens from which a larger micro-batch is no faster, by kind of device. Where memory is short,
activations are recomputed at first, and then a smaller micro-batch is chosen."""


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
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        phases = [
            {"name": p.name, "bytes": p.bytes, "terms": [asdict(t) for t in p.terms]}
            for p in self.phases
        ]
        rest = {k: v for k, v in asdict(self).items() if k not in ("phases", "shorter_bytes")}
        return {"fits": self.fits, "phases": phases, **rest}


def plan_embedded(
    config: RunConfig,
    shape: ModelShape,
    *,
    available_bytes: int,
    dtype_bytes: int,
    prompt_tokens: int,
    process_bytes: int = 0,
    device: str = "cpu",
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
    """
    sizes = _Sizes(config, shape, dtype_bytes, prompt_tokens, process_bytes)
    usable = int(HEADROOM * available_bytes) + process_bytes
    wanted_tokens = MICRO_BATCH_TOKENS[device]
    sizes.sleep_level = config.rollout.sleep or 0
    cache, micro = sizes.choose(usable, wanted_tokens)
    if device == "cuda" and config.rollout.sleep is None and sizes.colocated:
        # Sleeping costs seconds a step, so it is for runs that do not fit awake.
        wanted = sizes.wanted_cache()
        if cache < wanted or sizes.train_phase(micro).bytes > usable:
            sizes.sleep_level = 1
            cache, micro = sizes.choose(usable, wanted_tokens)
    phases = (sizes.generate_phase(cache), sizes.train_phase(micro))
    lengths = prompt_tokens, config.rollout.max_completion_tokens, config.rollout.generations
    prompt, completion, generations = lengths
    return EmbeddedPlan(
        phases=phases,
        available_bytes=usable,
        cache_bytes=cache,
        least_cache_bytes=sizes.least_cache(),
        micro_batch_tokens=micro,
        gradient_checkpointing=sizes.recompute,
        resident_rollouts=sizes.resident_rollouts(cache),
        rollouts_per_step=sizes.rollouts,
        trainable_parameters=sizes.trainable,
        checkpoint_bytes=sizes.trainable * (dtype_bytes + 12),
        final_bytes=sizes.trainable * dtype_bytes,
        sleep_level=sizes.sleep_level,
        prefix_gain=generations * (prompt + completion) / (prompt + generations * completion),
        shorter_bytes=tuple(sizes.savings(phases, micro, cache)),
    )


class _Sizes:
    """The terms of a run, in bytes."""

    def __init__(
        self, config: RunConfig, shape: ModelShape, dtype_bytes: int, prompt: int, process: int
    ) -> None:
        self.config = config
        self.shape = shape
        self.dtype_bytes = dtype_bytes
        self.prompt = prompt
        self.process = process
        self.completion = config.rollout.max_completion_tokens
        self.rollouts = config.data.prompts_per_step * config.rollout.generations
        self.adapter = (
            shape.adapter_parameters(config.lora.rank, config.lora.targets)
            if config.train.method == "lora"
            else 0
        )
        self.trainable = self.adapter or shape.parameters
        self.kv_token = shape.kv_elements_per_token() * dtype_bytes
        self.recompute = bool(config.train.gradient_checkpointing)
        self.colocated = config.rollout.engine == "vllm"
        self.sleep_level = 0
        self.awake_cache = 0
        """Of an engine that stays awake while the trainer trains."""

    def choose(self, usable: int, micro_batch_tokens: int) -> tuple[int, int]:
        """Bytes of cache and tokens of a micro-batch, as asked or what fits; sets ``recompute``."""
        cache = self.config.rollout.cache_bytes or self.default_cache(usable)
        self.awake_cache = cache if self.colocated else 0
        self.recompute, micro = self.training_shape(usable, micro_batch_tokens)
        return cache, micro

    def generate_phase(self, cache: int) -> Phase:
        """All that is held while samples are decoded with so many bytes of cache."""
        return Phase("generate", (*self.resident(), *self.generate(cache)))

    def train_phase(self, micro: int) -> Phase:
        """All that is held in a forward and backward of ``micro`` tokens."""
        return Phase("train", (*self.resident(), *self.train(micro)))

    def resident(self) -> Iterator[Term]:
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

    def generate(self, cache: int) -> Iterator[Term]:
        """What decoding holds besides."""
        if self.colocated:
            yield from self._engine(cache)
            yield colocated.bucket_term(self.shape, self.dtype_bytes, self.adapter)
        else:
            yield Term("key-value cache", cache, f"bound; {self.kv_token:,} B a token")
        rows, vocabulary = self.resident_rollouts(cache), self.shape.vocabulary
        yield Term("logits", 12 * rows * vocabulary, f"3 x 4 B x {rows} rows x {vocabulary:,}")

    def train(self, micro: int) -> Iterator[Term]:
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

    def default_cache(self, usable: int) -> int:
        """All that a step's samples can use, or what is left; room for one sample at the least."""
        return _most(self.least_cache(), self.wanted_cache(), usable, self._needed_with)

    def wanted_cache(self) -> int:
        """Cache of all samples of a step, or of an evaluation."""
        evaluated = self.config.eval.prompts * self.config.eval.generations
        if self.colocated:
            # One block is never used; a whole sequence more keeps the count simple.
            return self._flat_bytes(max(self.rollouts, evaluated) + 1)
        group_caches = self.config.data.prompts_per_step * self.group_bytes()
        return max(group_caches, self._flat_bytes(evaluated))

    def _needed_with(self, cache: int) -> int:
        """Bytes of the phases that hold the cache."""
        needed = self.generate_phase(cache).bytes
        if self.colocated and self.sleep_level == 0:
            self.awake_cache = cache
            frugal = self._recomputing(self.config.train.gradient_checkpointing is not False)
            needed = max(needed, frugal.train_phase(self.prompt + self.completion).bytes)
        return needed

    def least_cache(self) -> int:
        """Cache of one sample of the longest prompt."""
        return self._flat_bytes(2 if self.colocated else 1)

    def _flat_bytes(self, samples: int) -> int:
        """Cache of samples that share no prompt."""
        if self.colocated:
            return self.kv_token * samples * colocated.sequence_tokens(self._sequence())
        return self.kv_token * samples * (slot(self.prompt) + slot(self.completion))

    def _sequence(self) -> int:
        return self.prompt + self.completion

    def training_shape(self, usable: int, wanted: int) -> tuple[bool, int]:
        """Whether to recompute activations, and tokens of a micro-batch.

        What is asked for, or else the fastest that fits: ``wanted`` tokens with activations kept,
        as many recomputed, and at the last fewer, with room for one sample at the least.
        """
        train = self.config.train
        least = self.prompt + self.completion
        wanted = train.micro_batch_tokens or max(wanted, least)
        recompute = train.gradient_checkpointing
        if recompute is None:
            recompute = self._recomputing(False).train_phase(wanted).bytes > usable
        if train.micro_batch_tokens:
            return recompute, wanted
        sizes = self._recomputing(recompute)
        micro = _most(least, wanted, usable, lambda micro: sizes.train_phase(micro).bytes)
        return recompute, micro

    def _recomputing(self, recompute: bool) -> _Sizes:
        sizes = copy(self)
        sizes.recompute = recompute
        return sizes

    def savings(
        self, phases: tuple[Phase, ...], micro: int, cache: int
    ) -> Iterator[tuple[str, int]]:
        """The three changes that save most in the largest phase."""
        peak = max(phases, key=lambda phase: phase.bytes)
        changes = [("train.method = 'lora'", self._with_adapter(), cache, micro)]
        if not self.recompute:
            changes.append(
                ("train.gradient_checkpointing = true", self._recomputing(True), cache, micro)
            )
        if self.dtype_bytes == 4:
            half = self._like(self.config, 2)
            changes.append(("model.dtype = 'bfloat16'", half, cache, micro))
        if peak.name == "generate":
            least = self.least_cache()
            changes.append((f"rollout.cache_bytes = {least}", self, least, micro))
        else:
            least = self.prompt + self.completion
            changes.append((f"train.micro_batch_tokens = {least}", self, cache, least))
        options = []
        for what, sizes, new_cache, new_micro in changes:
            is_generate = peak.name == "generate"
            after = sizes.generate_phase(new_cache) if is_generate else sizes.train_phase(new_micro)
            options.append((what, peak.bytes - after.bytes))
        ranked = sorted(options, key=lambda option: -option[1])
        yield from [option for option in ranked if option[1] > 0][:3]

    def _with_adapter(self) -> _Sizes:
        train = self.config.train.model_copy(update={"method": "lora"})
        config = self.config.model_copy(update={"train": train})
        return self._like(config, self.dtype_bytes)

    def _like(self, config: RunConfig, dtype_bytes: int) -> _Sizes:
        other = _Sizes(config, self.shape, dtype_bytes, self.prompt, self.process)
        other.recompute = self.recompute
        other.sleep_level, other.awake_cache = self.sleep_level, self.awake_cache
        return other


def _most(least: int, wanted: int, usable: int, needed: Callable[[int], int]) -> int:
    """The largest number up to ``wanted`` that needs no more than is usable; at least ``least``."""
    choices = range(least, max(least, wanted) + 1)
    return choices[max(0, bisect_right(choices, usable, key=needed) - 1)]


def slot(tokens: int) -> int:
    """Cache places of a sequence (``roost.model.flash.padded``, which this module cannot import
    without torch): whole chunks of 256, and of the rest the next of 32, 64, 96, 128, 256."""
    whole, rest = divmod(tokens, 256)
    return 256 * whole + (256 if rest > 128 else -(-rest // 32) * 32)
