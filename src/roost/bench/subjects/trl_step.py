"""TRL's step: its own ``GRPOTrainer.train``, which waits for the race at each step's beginning.

Settings. What is not named in ``config`` is TRL's default: gradient checkpointing, 8 rows a
micro-batch, the fused head over completion tokens. Nothing is saved or logged to a tracker. The
variants are those that TRL's documentation offers for speed and memory: bfloat16 weights by
``model_init_kwargs``, activations kept in place of checkpointing, and generation by transformers'
continuous batching or by vLLM.

Times. ``generate_s`` is around ``_generate`` (templates, sampling, decoding, and where vLLM
generates, the sync before it), ``reward_s`` around ``_calculate_rewards``, and training is the rest
of the step, as it is for Roost.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, __version__

from roost.bench.channel import Channel
from roost.bench.job import LORA_ALPHA, LORA_RANK, Job
from roost.bench.memory import PeakMemory
from roost.bench.prompts import read_rows
from roost.bench.rewards import answer_and_digits
from roost.bench.subjects.caches import cache_blocks, set_up_vllm
from roost.bench.turns import Turn

ROWS = 8
"""A micro-batch; TRL's default."""


def serve(job: Job, channel: Channel) -> None:
    """Train a step a turn."""
    race = _Race(job, channel)
    trainer = _TimedTrainer(
        model=job.model,
        reward_funcs=reward,
        args=GRPOConfig(**config(job)),
        train_dataset=Dataset.from_list(read_rows(job.rows)),
        peft_config=adapter(job),
        callbacks=[race],
    )
    channel.ready(settings(trainer, job))
    race.trainer = trainer
    trainer.train()


def config(job: Job) -> dict[str, Any]:
    """Arguments of ``GRPOConfig``."""
    completions = job.prompts * job.generations
    rows = ROWS if completions % ROWS == 0 else completions
    chosen: dict[str, Any] = {
        "output_dir": str(Path(job.folder) / "trl"),
        "max_steps": job.turns,
        # All completions of a step make one optimizer step, and are generated at once.
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": completions // rows,
        "num_generations": job.generations,
        "max_completion_length": job.completion_tokens,
        "shuffle_dataset": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
    }
    if job.name != "trl":
        chosen["model_init_kwargs"] = {"dtype": "bfloat16"}
    if job.name == "trl-kept":
        chosen["gradient_checkpointing"] = False
    if job.name == "trl-cb":
        chosen["use_transformers_continuous_batching"] = True
        chosen["transformers_continuous_batching_config"] = cache_blocks(job)
    if job.name == "trl-vllm":
        share = set_up_vllm(job)
        chosen |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_max_model_length": job.sequence_tokens,
        }
        if share:
            chosen["vllm_gpu_memory_utilization"] = share["gpu_memory_utilization"]
    return chosen


def adapter(job: Job) -> LoraConfig | None:
    """The same adapter as Roost's; None for full training."""
    if job.method == "full":
        return None
    return LoraConfig(
        r=LORA_RANK, lora_alpha=LORA_ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def reward(
    completions: list[list[dict[str, str]]], answer: list[str], **others: Any
) -> list[float]:
    """The reward of all contenders, called as TRL calls rewards of chats."""
    return answer_and_digits([messages[0]["content"] for messages in completions], answer)


def settings(trainer: GRPOTrainer, job: Job) -> dict[str, Any]:
    """What it runs with, for all to read."""
    args = trainer.args
    return {
        "trl": __version__,
        "weights": str(next(trainer.model.parameters()).dtype).removeprefix("torch."),
        "autocast": "bfloat16" if args.bf16 else "none",
        "device": args.device.type,
        "attention": trainer.model.config._attn_implementation,
        "generation": generation(args),
        "method": job.method,
        "temperature": args.temperature,
        "rows_a_micro_batch": args.per_device_train_batch_size,
        "micro_batches": args.gradient_accumulation_steps,
        "gradient_checkpointing": args.gradient_checkpointing,
        "optimizer": str(getattr(args.optim, "value", args.optim)),
        "learning_rate": args.learning_rate,
        "threads": torch.get_num_threads(),
    }


def generation(args: GRPOConfig) -> str:
    """What samples."""
    if args.use_vllm:
        return f"vLLM, {args.vllm_mode}, {args.vllm_gpu_memory_utilization:.2f} of a GPU"
    return "continuous batching" if args.use_transformers_continuous_batching else "generate"


class _TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """Notes what a step's parts took."""

    seconds: dict[str, float]
    lengths: list[int]

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = super()._generate(*args, **kwargs)
        self.seconds["generate"] += time.perf_counter() - start
        self.lengths += [len(ids) for ids in result[1]]
        return result

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = super()._calculate_rewards(*args, **kwargs)
        self.seconds["reward"] += time.perf_counter() - start
        return result


class _Race(TrainerCallback):  # type: ignore[misc]
    """Begins a step when told to, and reports it at its end."""

    trainer: _TimedTrainer

    def __init__(self, job: Job, channel: Channel) -> None:
        self._channel = channel
        self._memory = PeakMemory(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        self._start = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._channel.await_go():
            raise SystemExit  # The parent wants no more.
        self.trainer.seconds = {"generate": 0.0, "reward": 0.0}
        self.trainer.lengths = []
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = time.perf_counter() - self._start
        generate, scored = self.trainer.seconds["generate"], self.trainer.seconds["reward"]
        tokens = sum(self.trainer.lengths)
        self._channel.report(
            Turn(
                step_s=step,
                generate_s=generate,
                reward_s=scored,
                train_s=step - generate - scored,
                generated_tokens=tokens,
                trained_tokens=tokens,
                completions=len(self.trainer.lengths),
                peak_bytes=self._memory.note(),
            )
        )
