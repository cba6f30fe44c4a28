"""Fields that are fine alone and wrong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from roost.config.schema import RunConfig
from roost.config.values import check_values


def check(config: RunConfig) -> Iterator[str]:
    """Each contradiction in a configuration, as a sentence that says what to change."""
    yield from check_values(config)
    yield from _check_loss(config)
    yield from _check_correction(config)
    yield from _check_training(config)
    yield from _check_staleness(config)
    yield from _check_rewards(config)
    yield from _check_engine(config)
    if "" in config.rollout.stop:
        yield "rollout.stop: holds an empty string, which would end every completion; take it out"
    if config.output.folder == "":
        yield "output.folder: is empty; name a folder, or leave it out for a new one in runs/"


def _check_loss(config: RunConfig) -> Iterator[str]:
    loss = config.loss
    if loss.epsilon >= 1:
        yield f"loss.epsilon = {loss.epsilon}: should be less than 1, or nothing is clipped below"
    high = loss.epsilon if loss.epsilon_high is None else loss.epsilon_high
    if loss.delta is not None and loss.delta <= 1 + high:
        yield (
            f"loss.delta = {loss.delta}: should be above 1 + epsilon_high = {1 + high:g}, since it "
            "bounds ratios that the clipping leaves"
        )


def _check_correction(config: RunConfig) -> Iterator[str]:
    low, high = config.correction.min, config.correction.max
    agreed = "or tokens that engine and trainer score alike would be weighted too; to correct"
    if low > 1:
        yield (
            f"correction.min = {low:g}: should be at most 1, {agreed} nothing, set "
            "correction.mode = 'off'"
        )
    if high < 1:
        yield (
            f"correction.max = {high:g}: should be at least 1, {agreed} nothing, set "
            "correction.mode = 'off'"
        )
    if low == high == 1:
        yield (
            "correction.min = 1: should be below correction.max = 1; to correct nothing, set "
            "correction.mode = 'off'"
        )


def _check_training(config: RunConfig) -> Iterator[str]:
    train = config.train
    if train.warmup_steps > train.steps:
        yield (
            f"train.warmup_steps = {train.warmup_steps}: should be at most train.steps = "
            f"{train.steps}"
        )
    if train.updates_per_batch > config.data.prompts_per_step:
        yield (
            f"train.updates_per_batch = {train.updates_per_batch}: a batch is split by prompt, so "
            f"at most data.prompts_per_step = {config.data.prompts_per_step}"
        )
    if train.optimizer == "adamw_8bit" and config.model.device == "cpu":
        yield "train.optimizer = 'adamw_8bit': needs a GPU; use 'adamw' with model.device = 'cpu'"
    if not config.lora.targets:
        yield "lora.targets: is empty; name layers, such as ['q_proj', 'v_proj'], or 'all-linear'"
    if config.data.chat == "never" and config.data.system_prompt is not None:
        yield "data.system_prompt: needs a chat template, and data.chat = 'never' uses none"


def _check_engine(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    if rollout.engine == "embedded":
        if rollout.sleep is not None:
            yield (
                f"rollout.sleep = {rollout.sleep}: is of rollout.engine = 'vllm'; the embedded "
                "engine holds no weights that could sleep. Leave it out"
            )
        if rollout.tensor_parallel > 1:
            yield (
                f"rollout.tensor_parallel = {rollout.tensor_parallel}: is of rollout.engine = "
                "'vllm'; the embedded engine decodes on the trainer's own module. Leave it out"
            )
        yield from _check_servers(config)
        return
    yield from _check_servers(config)
    off = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    for name, neutral in off.items():
        value = getattr(rollout, name)
        if value != neutral:
            yield (
                f"rollout.{name} = {value}: vLLM says how likely a token was among those it kept, "
                "not how much it kept, so the trainer could not score the same distribution; "
                f"leave it at {neutral}, or use rollout.engine = 'embedded'"
            )
    if rollout.sleep == 2 and config.train.method == "lora":
        yield (
            "rollout.sleep = 2: drops the base weights, which LoRA never sends again; use 1, or "
            "leave it out"
        )


def _check_servers(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    serving = rollout.engine == "vllm" and rollout.mode == "server"
    if not serving:
        if rollout.mode == "server":
            yield "rollout.mode = 'server': is of rollout.engine = 'vllm'; set that too"
        for name in ("servers", "launch", "token_file"):
            value = getattr(rollout, name)
            if value:
                yield (
                    f"rollout.{name} = {value!r}: is of rollout.engine = 'vllm' with rollout.mode "
                    "= 'server'; set both, or leave it out"
                )
        return
    if rollout.launch == bool(rollout.servers):
        both = "both are given" if rollout.launch else "neither is given"
        yield (
            f"rollout.mode = 'server': {both}; name running servers with rollout.servers, or set "
            "rollout.launch = true to have them started"
        )
    if rollout.servers and rollout.tensor_parallel > 1:
        yield (
            f"rollout.tensor_parallel = {rollout.tensor_parallel}: servers that run already have "
            "their own; give it to `roost serve --tensor-parallel-size`, and leave it out here"
        )
    if rollout.sleep:
        yield (
            f"rollout.sleep = {rollout.sleep}: a server does not sleep, it has cards of its own; "
            "leave it out"
        )


def _check_staleness(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    if not rollout.staleness:
        return
    if rollout.engine != "vllm" or rollout.mode != "server":
        yield (
            "rollout.staleness = 1: is of rollout.engine = 'vllm' with rollout.mode = 'server', "
            "which samples on devices of its own while the trainer trains; set both, or leave it "
            "out"
        )
    if config.correction.mode == "off":
        yield (
            "rollout.staleness = 1: samples are one batch older than what is trained, which "
            "correction.mode = 'off' would not correct; set it to 'truncate' or 'mask', or leave "
            "one of the two out"
        )


def _check_rewards(config: RunConfig) -> Iterator[str]:
    functions = config.rewards.functions
    if not functions:
        yield "rewards.functions: is empty; name at least one, such as 'numeric'"
    names = Counter(spec.name or spec.function.rpartition(":")[2] for spec in functions)
    for name, count in names.items():
        if count > 1:
            yield (
                f"rewards.functions: {count} are called {name!r}; tell them apart in the metrics "
                "by giving each a `name`"
            )
    if functions and all(spec.weight == 0 for spec in functions):
        yield "rewards.functions: every weight is 0, so nothing would be learnt"
