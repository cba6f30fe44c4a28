"""The checks themselves, on a CPU: content with what is right, and not with what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from roost.config.loading import build_config
from roost.gpu_check import groups as made
from roost.gpu_check.checks import decode, laws, machine, runs
from roost.gpu_check.models import real_model, small_model
from roost.gpu_check.results import CheckFailed, NotHere, Place
from roost.model.loading import load_policy
from roost.training import adapters
from roost.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("cpu", True, str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("law", [laws.packing, laws.on_policy, laws.idle, laws.base, decode.decode])
def test_the_laws_hold_here(law: Any, place: Place) -> None:
    assert law(place).detail


def test_a_wrong_gradient_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Trainer.accumulate

    def wrong(self: Trainer, *args: Any) -> None:
        honest(self, *args)
        if self.micro_batch_tokens == 40:
            next(iter(self.optimizer.gradients().values())).mul_(1.001)

    monkeypatch.setattr(Trainer, "accumulate", wrong)
    with pytest.raises(CheckFailed, match="micro-batches change the gradient"):
        laws.split(place)


def test_an_engine_that_scores_otherwise_is_seen(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = laws._sampled

    def wrong(*args: Any) -> Any:
        groups = honest(*args)
        groups[0].samples[0].logprobs[0] += 0.001
        return groups

    monkeypatch.setattr(laws, "_sampled", wrong)
    with pytest.raises(CheckFailed, match=r"llama, torch.float32: engine and trainer are 0.001"):
        laws.on_policy(place)


def test_a_base_weight_that_moves_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = adapters.add_adapter

    def unfrozen(*args: Any, **options: Any) -> Any:
        module = honest(*args, **options)
        for name, parameter in module.named_parameters():
            if name.endswith("layers.0.self_attn.q_norm.weight"):
                parameter.requires_grad_()
        return module

    monkeypatch.setattr(laws, "add_adapter", unfrozen)
    with pytest.raises(CheckFailed, match=r"moved \['model.layers.0.self_attn.q_norm.weight'\]"):
        laws.base(place)


def test_another_token_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = decode._drawn

    def wrong(policy: Any, place: Place, decoding: Any) -> Any:
        drawn = honest(policy, place, decoding)
        if decoding is not None:
            drawn[2, 1][0][-1] += 1
        return drawn

    monkeypatch.setattr(decode, "_drawn", wrong)
    with pytest.raises(CheckFailed, match=r"llama, torch.float32: 1 of 16 samples differ"):
        decode.decode(place)


def test_kernels_are_of_gpus(place: Place) -> None:
    with pytest.raises(NotHere, match="a CPU decodes with a kernel of its own"):
        decode.kernels(place)


def test_distances() -> None:
    one = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0])}
    other = {"a": torch.tensor([3.0, 4.5]), "b": torch.tensor([0.0])}
    assert made.distance(one, other) == pytest.approx(0.1)
    assert made.whole_distance(one, other) == pytest.approx(0.1)
    assert made.distance(one, {"a": one["a"]}) == float("inf")


def test_a_model_is_made_once_and_loads(place: Place) -> None:
    folder = real_model("Qwen3-0.6B", place)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert real_model("Qwen3-0.6B", place) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    policy, tokenizer = load_policy(build_config({"model": str(folder)}).model)
    assert policy.config.model_type == "qwen3"
    assert len(tokenizer) <= policy.config.vocab_size


def test_a_models_weights_are_its_seeds() -> None:
    one, same, other = (small_model("qwen3", CPU, torch.float32, seed) for seed in (1, 1, 2))
    assert torch.equal(one.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


@pytest.mark.slow
def test_a_run_is_resumed_and_its_memory_is_planned(place: Place) -> None:
    assert runs.resume(place).figures["off"] == 0.0
    figures = runs.plan_memory(place).figures
    assert set(figures) == {
        "Qwen3-0.6B full generate", "Qwen3-0.6B full train",
    }  # fmt: skip


def test_memory_out_of_its_band_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"phase": "train", "planned_bytes": 100, "measured_bytes": 131}
    monkeypatch.setattr(runs, "_ledger", lambda *args: [row])
    with pytest.raises(CheckFailed, match=r"train \+31.0%.*the band is 30%"):
        runs.plan_memory(place)


def test_sleep_is_not_for_a_cpu(place: Place) -> None:
    from roost.gpu_check.checks import vllm

    with pytest.raises(NotHere, match="sleeps only on a GPU"):
        vllm.sleep_1(place)


def test_a_fault_of_the_machine_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from roost.doctor.findings import Finding, Level, Report

    fault = Finding("driver", Level.FAULT, "too old", "nothing runs", "update it")
    monkeypatch.setattr(machine, "collect", lambda folder: None)
    monkeypatch.setattr(machine, "examine", lambda facts: Report([fault]))
    with pytest.raises(CheckFailed, match="driver: too old"):
        machine.doctor(place)
