"""Roost and TRL are asked for the same work: their settings are compared name by name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from roost.bench.job import Job
from roost.bench.subjects.caches import (
    SPARE_BYTES,
    cache_blocks,
    cache_gib,
    set_up_vllm,
    vllm_share,
)
from roost.bench.subjects.roost_step import sections
from roost.config import RunConfig
from roost.config.loading import build_config
from roost.model.source import tiny_model_folder


@pytest.fixture(params=["trl-cb", "trl-kept"])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(
        name=request.param,
        kind="step",
        model="tiny",
        method="lora",
        prompts=8,
        generations=8,
        prompt_tokens=45,
        completion_tokens=128,
        turns=4,
        threads=2,
        folder=str(tmp_path),
        rows=str(tmp_path / "prompts.jsonl"),
    )


def test_a_job_travels(job: Job, tmp_path: Path) -> None:
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job


@pytest.fixture
def ours(job: Job) -> RunConfig:
    return build_config(sections(job))


@pytest.mark.filterwarnings("ignore")
def test_roost_and_trl_do_the_same_work(job: Job, ours: RunConfig) -> None:
    from roost.bench.subjects import trl_step

    theirs = trl_step.GRPOConfig(**trl_step.config(job))

    batch = theirs.per_device_train_batch_size * theirs.gradient_accumulation_steps
    assert theirs.generation_batch_size == batch == ours.data.prompts_per_step * 8
    assert theirs.num_generations == ours.rollout.generations == 8
    assert theirs.max_completion_length == ours.rollout.max_completion_tokens == 128
    assert theirs.max_steps == ours.train.steps == 4
    assert not theirs.shuffle_dataset
    assert not ours.data.shuffle
    for name in ("temperature", "top_p", "top_k"):
        assert getattr(theirs, name) == getattr(ours.rollout, name)
    for name in ("epsilon", "beta"):
        assert getattr(theirs, name) == getattr(ours.loss, name)
    for name in (
        "learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay",
        "max_grad_norm", "warmup_steps", "num_iterations",
    ):  # fmt: skip
        assert getattr(theirs, name) == getattr(ours.train, name), name
    # Roost recomputes activations where its plan finds no room for them; TRL unless told otherwise.
    assert ours.train.gradient_checkpointing is None
    assert theirs.gradient_checkpointing is (job.name != "trl-kept")
    assert theirs.lr_scheduler_type == ours.train.schedule
    assert theirs.loss_type == ours.loss.type
    assert theirs.scale_rewards == ours.loss.scale_rewards


@pytest.mark.parametrize("name", ["roost-vllm", "roost-server", "roost-ahead"])
def test_roosts_engines_differ_in_nothing_else(job: Job, ours: RunConfig, name: str) -> None:
    theirs = build_config(sections(replace(job, name=name)))
    engine = theirs.rollout.model_dump()
    assert (engine["engine"], engine["mode"]) == (
        "vllm",
        "colocate" if name == "roost-vllm" else "server",
    )
    assert engine["staleness"] == theirs.train.steps - ours.train.steps == (name == "roost-ahead")
    same = {"engine", "mode", "launch", "staleness"}
    assert theirs.rollout.model_dump(exclude=same) == ours.rollout.model_dump(exclude=same)
    others = {"rollout": True, "train": {"steps"}}
    assert theirs.model_dump(exclude=others) == ours.model_dump(exclude=others)


@pytest.mark.filterwarnings("ignore")
def test_their_adapters_are_the_same(job: Job, ours: RunConfig) -> None:
    from roost.bench.subjects import trl_step

    adapter = trl_step.adapter(job)

    assert adapter is not None
    assert (adapter.r, adapter.lora_alpha) == (ours.lora.rank, ours.lora.alpha) == (16, 32.0)
    assert adapter.target_modules == ours.lora.targets == "all-linear"
    assert adapter.lora_dropout == 0.0


@pytest.mark.filterwarnings("ignore")
def test_the_reward_is_the_same_function(job: Job) -> None:
    from roost.bench.rewards import answer_and_digits
    from roost.bench.subjects import trl_step

    chats = [[{"role": "assistant", "content": text}] for text in ("12", "so 7")]

    rewards = trl_step.reward(completions=chats, answer=["12", "12"], trainer_state=None)

    assert rewards == answer_and_digits(["12", "so 7"], ["12", "12"])


def test_caches_hold_all_completions_at_once(job: Job) -> None:
    # 173 tokens are one page of 256; 64 completions.
    assert cache_blocks(job)["num_blocks"] == 64
    # 2 (keys, values) x 2 bytes x 30 layers x 3 heads x 64 = 23,040 bytes a token; 173 tokens of
    # 64 completions are 255 MB: one GiB.
    shape = SimpleNamespace(
        num_attention_heads=9, num_key_value_heads=3, hidden_size=576, num_hidden_layers=30
    )
    assert cache_gib(job, shape) == 1
    # 128 layers of 32 heads: 2 x 2 x 128 x 32 x 64 = 1 MiB a token; 11,072 tokens are 10.8 GiB.
    shape = SimpleNamespace(num_attention_heads=32, hidden_size=2048, num_hidden_layers=128)
    assert cache_gib(job, shape) == 11


@pytest.fixture
def tiny_job(job: Job) -> Job:
    return replace(job, model=str(tiny_model_folder()))


def test_vllms_share_of_a_gpu_is_what_the_job_needs(tiny_job: Job) -> None:
    """The tiny model's weights are a megabyte; its cache is one GiB, as none is smaller."""
    total = 80 * 2**30
    share = vllm_share(tiny_job, total)
    assert share * total == pytest.approx(2**30 + SPARE_BYTES, rel=1e-3)
    assert vllm_share(tiny_job, 2**30) == 0.9, "never all of a card"


def test_vllm_is_told_the_size_of_its_cache(tiny_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert set_up_vllm(tiny_job) == {}
    assert os.environ == {"VLLM_CPU_KVCACHE_SPACE": "1"}

    card = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    assert set_up_vllm(tiny_job) == {"gpu_memory_utilization": vllm_share(tiny_job, 80 * 2**30)}
    # In this process, whose allocator is asked for the peak.
    assert os.environ == {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def test_all_decode_in_one_precision(tiny_job: Job) -> None:
    from roost.bench.subjects.decoding import working_dtype

    assert working_dtype(tiny_job.model) == torch.float32
