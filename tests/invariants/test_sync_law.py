"""Law 5: the engine samples from the weights being trained, and a run notices when it does not.

The embedded engine has no tensors of its own, so there is nothing to sync; what can be wrong is
what it computes, and every step checks that against the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import roost
from roost.algorithm.mismatch import Mismatch
from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import SamplingParams
from roost.errors import EngineError
from roost.model.policy import Policy
from roost.run.agreement import LIMITS, check_agreement
from roost.samples import Prompt, Sample
from support.small_models import build


def tiny_run(folder: Path, **train: Any) -> Any:
    return roost.train(
        data={"source": "arithmetic", "prompts_per_step": 3},
        rollout={"generations": 4, "max_completion_tokens": 12},
        train={"steps": 3, "learning_rate": 1e-3, **train},
        eval={"prompts": 0},
        output={"folder": str(folder)},
        quiet=True,
    )


def test_the_engine_keeps_no_weights() -> None:
    """After generating, all tensors that the engine reaches are the policy's own parameters."""
    policy = Policy(build("llama"))
    engine = EmbeddedEngine(policy, None, cache_bytes=2**24)
    list(engine.generate([Prompt(0, (5, 6), "")], 2, SamplingParams(5), seed=0, step=0))
    assert engine.policy is policy
    own = {name: value for name, value in vars(engine).items() if name != "policy"}
    assert not any(isinstance(value, torch.Tensor) for value in own.values())


def corrupted(monkeypatch: pytest.MonkeyPatch, from_step: int, spoil: Any) -> None:
    """An engine whose weights are spoilt while it samples, from a step on."""
    honest = EmbeddedEngine.generate

    def generate(self: EmbeddedEngine, *args: Any, step: int, **kwargs: Any) -> Iterator[Sample]:
        weight = self.policy.base.get_input_embeddings().weight.data
        kept = weight.clone()
        if step >= from_step:
            spoil(weight)
        samples = list(honest(self, *args, step=step, **kwargs))
        weight.copy_(kept)
        return iter(samples)

    monkeypatch.setattr(EmbeddedEngine, "generate", generate)


def roll(weight: torch.Tensor) -> None:
    weight.copy_(weight.roll(1, dims=0))


def halve(weight: torch.Tensor) -> None:
    weight[: len(weight) // 2] = 0.0


@pytest.mark.parametrize("spoil", [roll, halve])
def test_a_corrupted_engine_stops_the_run(
    spoil: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrupted(monkeypatch, from_step=1, spoil=spoil)
    with pytest.raises(EngineError, match=r"step 2: .* differ from .* wrong weights"):
        tiny_run(tmp_path / "run")


def test_an_honest_engine_passes_with_several_updates(tmp_path: Path) -> None:
    """Later updates of a batch move away from what sampled it; that is not the engine's doing."""
    assert tiny_run(tmp_path / "run", num_iterations=3, learning_rate=3e-3).finished


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_limits(dtype: torch.dtype) -> None:
    row = {"step": 1, "tokens/trained": 5}

    def of(mean: float) -> Mismatch:
        return Mismatch(tokens=4.0, distance=4.0 * mean)

    check_agreement(row, of(LIMITS[dtype]), dtype)
    for value in (LIMITS[dtype] * 1.01, float("nan")):
        with pytest.raises(EngineError, match=r"step 1: .* Likeliest cause"):
            check_agreement(row, of(value), dtype)
    check_agreement({**row, "tokens/trained": 0}, of(9.0), dtype)
