"""Sizes of a run on one device that its bytes are made of: tokens, samples, parameters, cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from roost.config import RunConfig
from roost.planner import colocated
from roost.planner.model_shape import ModelShape


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
    device: str = "cpu"
    """Its kind, ``cpu`` or ``cuda``."""
    recompute: bool = False
    """Whether the backward computes activations again."""
    sleep_level: int = 0
    """What an engine with weights of its own does while the trainer trains."""
    awake_cache: int = 0
    """Bytes of cache of an engine that stays awake while the trainer trains."""
    recorded: bool = False
    """Whether the embedded engine records its decode steps, as it does on a GPU."""
    kept_cache: int = 0
    """Bytes of its cache that it keeps, with those steps, while the trainer trains."""
    packed: bool = False
    """Whether the embedded engine decodes with a packed copy of the weights."""
    generate_residual: int = 0
    """Bytes that the pilot measured beyond these terms while decoding; may be negative."""
    train_residual: int = 0
    """The same of a forward and backward."""
    engines: int = 1
    """Rollout engines that share the samples of a step."""
    largest_micro_batch: int = 0
    """Tokens of the largest that the pilot of this recipe saw; 0 where there was none."""

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
        """Samples of a step that one engine makes."""
        return self._prompts(self.config.data.prompts_per_step) * self.config.rollout.generations

    @cached_property
    def step_samples(self) -> int:
        """Samples of a step that all engines make, which every process trains on."""
        return self.config.data.prompts_per_step * self.config.rollout.generations

    @cached_property
    def evaluated(self) -> int:
        """Samples of an evaluation that one engine makes."""
        return self._prompts(self.config.eval.prompts) * self.config.eval.generations

    @cached_property
    def update_tokens(self) -> int:
        """Tokens of one update at full length; of one sample at the least."""
        data, train = self.config.data, self.config.train
        # The last token of a completion is never fed back.
        group = self.prompt + self.config.rollout.generations * max(1, self.completion - 1)
        return max(self.sequence, -(-data.prompts_per_step * group // train.updates_per_batch))

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
    def engine_kv_token(self) -> int:
        """The same in the cache of this device's engine, or of its shard of one."""
        if not (self.colocated or self.served):
            return self.kv_token
        shards = self.config.rollout.tensor_parallel
        return self.shape.kv_elements_per_token(shards) * self.dtype_bytes

    @cached_property
    def colocated(self) -> bool:
        """Whether an engine with weights of its own shares the trainer's process and device."""
        return self.config.rollout.engine == "vllm" and self.config.rollout.mode == "colocate"

    @cached_property
    def served(self) -> bool:
        """Whether the engine is in processes of its own."""
        return self.config.rollout.engine == "vllm" and self.config.rollout.mode == "server"

    @cached_property
    def servers_here(self) -> int:
        """Servers that take memory of the trainer's device: on GPUs each has a card of its own."""
        launched = self.served and self.config.rollout.launch and self.device == "cpu"
        return self.config.rollout.replicas if launched else 0

    def recomputing(self, recompute: bool) -> RunSizes:
        """The same run with activations computed again, or kept."""
        return replace(self, recompute=recompute)

    def group_bytes(self) -> int:
        """Cache of one prompt and all its completions at full length."""
        generations = self.config.rollout.generations
        return self.kv_token * (slot(self.prompt) + generations * slot(self.completion))

    def resident_rollouts(self, cache: int) -> int:
        """Samples that decode at once, at full length."""
        generations = self.config.rollout.generations
        fit = max(1, cache * generations // self.group_bytes())
        if self.colocated or self.served:
            fit = max(1, cache // self.flat_bytes(1) - 1)
        bound = self.config.rollout.max_sequences or self.rollouts
        return min(fit, bound, self.rollouts)

    def wanted_cache(self) -> int:
        """Cache of all samples of a step, or of an evaluation."""
        if self.colocated or self.served:
            # One block is never used; a whole sequence more keeps the count simple.
            return self.flat_bytes(max(self.rollouts, self.evaluated) + 1)
        return max(self.step_cache(), self.flat_bytes(self.evaluated))

    def step_cache(self) -> int:
        """Cache of all samples of a step, which share their prompts in the embedded engine."""
        return self._prompts(self.config.data.prompts_per_step) * self.group_bytes()

    def least_cache(self) -> int:
        """Cache of one sample of the longest prompt."""
        return self.flat_bytes(2 if self.colocated or self.served else 1)

    def _prompts(self, count: int) -> int:
        """Of so many prompts, those of one engine; one that gets more has them wait."""
        return -(-count // self.engines)

    def flat_bytes(self, samples: int) -> int:
        """Cache of samples that share no prompt."""
        if self.colocated or self.served:
            return self.engine_kv_token * samples * colocated.sequence_tokens(self.sequence)
        return self.kv_token * samples * (slot(self.prompt) + slot(self.completion))


def slot(tokens: int) -> int:
    """Cache places of a sequence (``roost.model.flash.padded``, which this module cannot import
    without torch): whole chunks of 256, and of the rest the next of 32, 64, 96, 128, 256."""
    whole, rest = divmod(tokens, 256)
    return 256 * whole + (256 if rest > 128 else -(-rest // 32) * 32)
