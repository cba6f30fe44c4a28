"""Every field of a run, with its default and its meaning.

A section given as a bare value sets its main field: ``model = "path"`` is
``[model] path = "path"``, ``data = "file.jsonl"`` is ``[data] source = "file.jsonl"``, and
``rewards = ["numeric"]`` is ``[rewards] functions = ["numeric"]``.

Imports neither torch nor transformers (the light law).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

SMALL_MODEL_PARAMETERS = 50_000_000
"""Below this, ``model.dtype = "auto"`` is float32."""


class Section(BaseModel):
    """A table of the configuration; unknown fields are errors, values are checked strictly."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        frozen=True,
        allow_inf_nan=False,
    )
    main_field: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_value(cls, value: Any) -> Any:
        if cls.main_field is not None and not isinstance(value, (dict, BaseModel)):
            return {cls.main_field: value}
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_for_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts true as 1; in a recipe it is a mistake.
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)}:
            raise PydanticCustomError("bool_for_number", "a number, not true or false")
        return value


class ModelConfig(Section):
    """The policy: which weights, in which precision, on which device."""

    main_field = "path"

    path: str = "tiny"
    """A local folder, a hub id, or `tiny`: the small arithmetic model that ships with Roost."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    tokenizer: str | None = None
    """A folder or hub id for the tokenizer, where it is not beside the weights."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Working precision of weights and activations. `auto` is bfloat16, and float32 for models
    under 50 million parameters, where bfloat16 saves nothing. Optimizer states are always
    float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes the GPU where there is one."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for sources you would run yourself."""


class LoraConfig(Section):
    """The adapter, used when `train.method = "lora"`."""

    rank: int = Field(16, ge=1)
    """Inner width of each adapter."""
    alpha: float = Field(32.0, gt=0)
    """The adapter's output is scaled by alpha / rank (alpha / sqrt(rank) with rslora)."""
    targets: str | list[str] = "all-linear"
    """`all-linear`, or name endings of the linear layers to adapt: `["q_proj", "v_proj"]`."""
    rslora: bool = False
    """Rank-stabilised scaling (Kalajdzievski 2023, arXiv:2312.03732)."""
    learning_rate: float | None = Field(None, ge=0)
    """Peak learning rate of the adapter, which takes ten times and more that of all weights
    (Schulman et al. 2025, "LoRA Without Regret"); by default `train.learning_rate`."""


class DataConfig(Section):
    """Where prompts come from and how they become tokens."""

    main_field = "source"

    source: str = "arithmetic"
    """`arithmetic` (built in), `reasoning_gym:TASK`, a `.jsonl`, `.json`, `.parquet` or `.csv`
    file, `my_data.py:generator`, `module:generator`, or a datasets hub id."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the source: size and parameters of a reasoning-gym task, arguments of a
    generator, `name` of a hub dataset's configuration."""
    split: str = "train"
    """Split of a hub dataset."""
    prompt_column: str = "prompt"
    """The column that holds the prompt: text, or a list of chat messages."""
    limit: int | None = Field(None, ge=1)
    """Read at most this many rows; needed for a generator that never ends."""
    prompts_per_step: int = Field(8, ge=1)
    """Prompts of one training step; each gets `rollout.generations` completions."""
    shuffle: bool = True
    """Draw prompts in a new random order each epoch, from the run's seed."""
    system_prompt: str | None = None
    """Put before each prompt as a system message (a prompt that is text becomes a user message)."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Whether a text prompt is wrapped as a user message in the chat template. `auto` does so
    where the tokenizer has a template."""
    chat_template: str | None = None
    """A Jinja template, or the path of a file with one, in place of the tokenizer's."""
    template_options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the chat template, such as `enable_thinking = false`."""
    max_prompt_tokens: int | None = Field(None, ge=1)
    """Longest prompt; by default the model's context less the completion budget."""
    overlong: Literal["drop", "truncate", "error"] = "drop"
    """What happens to longer prompts, before step 0, with a count: leave out, keep the last
    tokens, or stop."""


class EvalConfig(Section):
    """Held-out evaluation: before the first step, after the last, and in between."""

    source: str | None = None
    """A prompt source as in `data.source`; by default rows of `data.source` that are never
    trained on."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of `eval.source`."""
    prompts: int = Field(64, ge=0)
    """Held-out prompts; 0 turns evaluation off."""
    every: int = Field(0, ge=0)
    """Evaluate every so many steps; 0 is only at both ends of the run."""
    generations: int = Field(1, ge=1)
    """Completions of each held-out prompt."""
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature of evaluation; by default that of `rollout`."""


class RolloutConfig(Section):
    """How completions are sampled, and by which engine."""

    main_field = "engine"

    @property
    def ranks_per_engine(self) -> int:
        """Processes of the trainer that hold one engine together."""
        colocated = self.engine == "vllm" and self.mode == "colocate"
        return self.tensor_parallel if colocated else 1

    engine: Literal["embedded", "vllm"] = "embedded"
    """`embedded` decodes on the policy's own module: one copy of the weights, nothing to sync.
    `vllm` has a copy of its own, synced and proven equal before it samples; it needs vLLM."""
    mode: Literal["colocate", "server"] = "colocate"
    """Where `vllm` runs: `colocate` is in the trainer's process, on the same device; `server` is
    in processes of its own, which `servers` names or `launch` starts."""
    servers: list[str] = Field(default_factory=list)
    """Servers started with `roost serve`: `http://HOST:PORT`, or the file that its
    `--address-file` wrote. They share the load, the fastest does the most."""
    launch: bool = False
    """Start servers for this run, start one again when it dies, and stop them at the end."""
    replicas: int = Field(1, ge=1)
    """Servers that `launch` starts; on GPUs each has a card of its own."""
    tensor_parallel: int = Field(1, ge=1)
    """Devices that hold one engine of `vllm` together, a shard of its weights and cache each: with
    `colocate` neighbouring processes of `torchrun`, with `launch` cards of each server."""
    token_file: str | None = None
    """A file with the secret that servers given as `http://HOST:PORT` ask for; an address file
    names its own."""
    patience_s: float = Field(300.0, gt=0)
    """Seconds that a run goes on without any server, or without a finished sample, before it
    stops."""
    staleness: int = Field(0, ge=0, le=1)
    """Batches that sampling runs ahead of training: with 1 the next batch is sampled while this one
    trains, from the weights before it. Only with `mode` = `server`, whose devices would be idle
    meanwhile; the correction weights its tokens for what the policy has moved."""
    sleep: int | None = Field(None, ge=0, le=2)
    """What `vllm` does on a GPU while the trainer trains: 0 stays awake, 1 moves its weights to
    host memory and drops its cache, 2 drops both (full training only). By default 0 where all
    fits, else 1."""
    generations: int = Field(8, ge=2)
    """Completions of each prompt (G); advantages compare them with each other."""
    max_completion_tokens: int = Field(512, ge=1)
    """Token budget of a completion, its stop token included."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the trainer scores at the same one."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus: sample from the likeliest tokens that hold this much probability."""
    top_k: int = Field(0, ge=0)
    """Sample from the so many likeliest tokens; 0 is all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Sample from tokens of at least this share of the likeliest token's probability."""
    stop: list[str] = Field(default_factory=list)
    """Strings that end a completion."""
    cache_bytes: int | None = Field(None, ge=1)
    """Most bytes of key-value cache; samples that do not fit are queued. By default what the
    memory plan leaves. `vllm` takes them whole at the start."""
    max_sequences: int | None = Field(None, ge=1)
    """Most samples decoded at once; by default all that fit the cache."""


class RewardSpec(Section):
    """One reward function with its settings."""

    main_field = "function"

    function: str
    """A built-in name, `my_rewards.py:function` or `module:function`."""
    name: str | None = None
    """Its name in metrics; by default the function's."""
    weight: float = 1.0
    """Its factor in the sum."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments passed at each call."""


class RewardsConfig(Section):
    """What is rewarded, and the bounds that rewards run in."""

    main_field = "functions"

    functions: list[RewardSpec] = Field(default_factory=lambda: [RewardSpec(function="numeric")])
    """Reward functions; a sample's reward is their weighted sum."""
    deadline_s: float = Field(10.0, gt=0, le=7 * 24 * 3600)
    """Seconds that scoring one sample may take; a worker that overruns is killed and the sample
    left unscored."""
    memory_bytes: int = Field(4 * 2**30, ge=0, le=2**60)
    """Address space of a reward worker beyond what it starts with; 0 is no bound."""
    workers: int | None = Field(None, ge=1, le=1024)
    """Worker processes; by default one per core up to 4."""


class LossConfig(Section):
    """The objective."""

    main_field = "type"

    type: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = "dapo"
    """How token losses are averaged: `dapo` over all tokens of the batch, `grpo` within each
    completion first, `dr_grpo` over the full budget, `bnpo` over the tokens of each update."""
    epsilon: float = Field(0.2, ge=0)
    """The ratio is clipped below at 1 - epsilon."""
    epsilon_high: float | None = Field(None, ge=0)
    """The ratio is clipped above at 1 + epsilon_high; by default epsilon."""
    delta: float | None = Field(None, gt=0)
    """Upper bound on the unclipped ratio as well (two-sided clipping, INTELLECT-2)."""
    beta: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the starting model; with LoRA the reference is the policy
    with its adapter off, with full training a frozen copy."""
    importance: Literal["token", "sequence"] = "token"
    """Importance ratio of each token, or one of each completion (GSPO, arXiv:2507.18071)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide advantages by the standard deviation of the group, of the batch, or not at all."""
    mask_truncated: bool = False
    """Leave completions that ran out of budget out of the loss (and out of its token count)."""


class CorrectionConfig(Section):
    """Importance weights for what the engine samples a little differently than the trainer scores.

    A weight is the trainer's probability of a token, under the weights that sampled it, over the
    engine's; it multiplies the token's whole term of the loss."""

    main_field = "mode"

    mode: Literal["auto", "off", "truncate", "mask"] = "auto"
    """What happens to weights outside `min` and `max`: `truncate` takes the bound, `mask` takes 0,
    which drops the token; `off` corrects nothing. `auto` is `off` with the embedded engine, which
    computes the trainer's own numbers, and `truncate` with vLLM, whose kernels round differently
    (Yao et al. 2025, https://fengyao.notion.site/off-policy-rl). Truncating keeps every token in
    the loss."""
    level: Literal["token", "sequence"] = "token"
    """One weight for each token, or one for each completion: the geometric mean of its tokens'
    ratios. It is not their product, which leaves any bounds the sooner the longer a completion is,
    so that a bound on it drops long completions."""
    min: float = Field(0.0, ge=0)
    """Smallest weight, at most 1; 0 is no bound."""
    max: float = Field(2.0, gt=0)
    """Largest weight, at least 1. Yao et al. cap at 2: a token counts at most twice, and rounding,
    of several hundredths of a nat, stays far within."""


class TrainConfig(Section):
    """The optimizer and its schedule."""

    method: Literal["full", "lora"] = "full"
    """Train all weights, or an adapter over frozen ones."""
    steps: int = Field(200, ge=1, le=10**9)
    """Rollout batches to train on."""
    learning_rate: float = Field(1e-6, ge=0)
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Shape of the decay to 0 after warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from 0."""
    num_iterations: int = Field(1, ge=1)
    """Update passes over each rollout batch (mu)."""
    updates_per_batch: int = Field(1, ge=1)
    """Parts that a rollout batch is split into by prompt, with an optimizer step after each."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """`adamw_8bit` keeps moments in 8 bits (needs bitsandbytes and a GPU)."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the first moment."""
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    """Decay of the second moment."""
    adam_epsilon: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay, on matrices only."""
    max_grad_norm: float = Field(1.0, ge=0)
    """Gradients are scaled down to this global norm; 0 never clips."""
    micro_batch_tokens: int | None = Field(None, ge=1)
    """Tokens of one forward and backward: the bound on training memory. By default from the
    memory plan."""
    gradient_checkpointing: bool | None = None
    """Recompute layer activations in the backward pass: less memory, a third more arithmetic. By
    default only where the memory plan finds no room to keep them."""


class OutputConfig(Section):
    """Where the run is kept."""

    main_field = "folder"

    folder: str | None = None
    """The run folder; by default `runs/<model>-<date>-<time>`."""
    checkpoint_every: int = Field(50, ge=0)
    """Steps between checkpoints; 0 is only at the end."""
    keep_checkpoints: int = Field(2, ge=1)
    """Older checkpoints are removed."""
    samples_every: int = Field(1, ge=0)
    """Steps between files of samples; 0 writes none."""
    trackers: list[Literal["tensorboard", "trackio", "wandb"]] = Field(default_factory=list)
    """Experiment trackers that also receive the metrics."""


class PlanConfig(Section):
    """The cards that a recipe is meant for. `roost plan` reads it; a run takes the machine it is
    on."""

    main_field = "gpu"

    gpu: str | None = None
    """A card by name, such as `H200 NVL`."""
    gpus: int | None = Field(None, ge=1)
    """Cards of one node; by default the fewest that fit."""
    nodes: int | None = Field(None, ge=1)
    """Servers."""
    mode: Literal["colocate", "server"] | None = None
    """Trainer and engine on the same cards, or each on its own."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """The engine's share of each of its cards."""
    sleep_level: int | None = Field(None, ge=0, le=2)
    """What a colocated engine does while the trainer works: 0 stays, 1 moves its weights to the
    host, 2 drops them."""
    tensor_parallel: int | None = Field(None, ge=1)
    """Cards of one engine."""
    replicas: int | None = Field(None, ge=1)
    """Engines."""
    trainer_gpus: int | None = Field(None, ge=1)
    """Cards that train."""
    strategy: Literal["ddp", "fsdp", "hybrid"] | None = None
    """Whether the trainer's states are copied to each card, divided over all, or over a node's."""
    prompt_length: int | None = Field(None, ge=1)
    """Longest prompt to plan for; by default `data.max_prompt_tokens`, or 512."""
    price: float | None = Field(None, ge=0)
    """Of one card for an hour."""


class RunConfig(Section):
    """A whole run."""

    @property
    def peak_learning_rate(self) -> float:
        """Of what is trained: the adapter or all weights."""
        if self.train.method == "lora" and self.lora.learning_rate is not None:
            return self.lora.learning_rate
        return self.train.learning_rate

    @property
    def allowed_lag(self) -> int:
        """Most versions by which a token may be older than the policy that trains on it."""
        updates = self.train.num_iterations * self.train.updates_per_batch
        return self.rollout.staleness * updates

    @property
    def decided_correction(self) -> CorrectionConfig:
        """`correction` with `auto` decided by the engine."""
        if self.correction.mode != "auto":
            return self.correction
        mode = "off" if self.rollout.engine == "embedded" else "truncate"
        return self.correction.model_copy(update={"mode": mode})

    seed: int = Field(42, ge=-(2**63), lt=2**63)
    """Seeds prompt order, sampling and adapter initialisation."""
    model: ModelConfig = ModelConfig()
    """The policy."""
    lora: LoraConfig = LoraConfig()
    """The adapter."""
    data: DataConfig = DataConfig()
    """The prompts."""
    rollout: RolloutConfig = RolloutConfig()
    """The sampling."""
    rewards: RewardsConfig = RewardsConfig()
    """The rewards."""
    loss: LossConfig = LossConfig()
    """The objective."""
    correction: CorrectionConfig = CorrectionConfig()
    """The correction for the engine's numbers."""
    train: TrainConfig = TrainConfig()
    """The optimizer."""
    eval: EvalConfig = EvalConfig()
    """The evaluation."""
    output: OutputConfig = OutputConfig()
    """The run folder."""
    plan: PlanConfig = PlanConfig()
    """The cards to plan for."""
