"""Each check passes where all is well, and fails where what it looks at is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from roost.config.loading import build_config, merge
from roost.engines.embedded import EmbeddedEngine
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.state import State
from roost.gpu_check.results import Found
from roost.run.display import QuietDisplay
from roost.samples import Sample
from roost.self_check.checks import CHECKS, Check, Outcome, outcome_of, run_checks
from roost.self_check.subject import Subject, small
from roost.training.optimizer import MasterOptimizer
from support.copied_port import CopiedPort
from support.tiny_runs import SECTIONS

LAWS = ("agreement", "zero-advantage", "learning-rate-0")
ON_THE_WAY = ("dropped-tensor", "swapped-pair", "zeroed-tensor", "flipped-bit")
FAULTS = {
    "full": {*ON_THE_WAY, "stale-weights", "skipped-sync", "wake-without-sync"},
    "lora": {
        *ON_THE_WAY,
        "stale-adapter",
        "skipped-sync",
        "wake-without-sync",
        "base-weight-changed",
        "adapter-counted-twice",
    },
}


def check(**sections: Any) -> dict[str, Outcome]:
    config = build_config(merge(SECTIONS, sections))
    outcomes = list(run_checks(Subject(small(config), Path.cwd()), QuietDisplay()))
    assert [outcome.name for outcome in outcomes] == [check.name for check in CHECKS]
    return {outcome.name: outcome for outcome in outcomes}


def verdicts(outcomes: dict[str, Outcome], verdict: str) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome.verdict == verdict}


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """``rollout.engine = "vllm"`` is an engine with a copy of the weights, which sleeps."""

    def build(prepared: Any, policy: Any, ranks: Any, through: Any) -> VllmEngine:
        port, probe = through(CopiedPort(policy)), list(prepared.prompts.train[0].token_ids)
        return VllmEngine(
            policy, prepared.tokenizer, port, probe=probe, cache_bytes=1, sleep_level=1
        )

    monkeypatch.setattr("roost.run.engines._build_vllm", build)
    monkeypatch.setattr("roost.run.engines.check_version", lambda version: None)
    # As with a large model, of which a later sync compares a share.
    monkeypatch.setattr("roost.engines.vllm.engine.CPU_PROOF_BYTES", 1)


def with_vllm(method: str) -> dict[str, Outcome]:
    return check(rollout={"engine": "vllm"}, train={"method": method})


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_the_embedded_engine_the_laws_hold_and_nothing_is_sent(
    method: str, dtype: str
) -> None:
    outcomes = check(train={"method": method}, model={"dtype": dtype})
    assert verdicts(outcomes, "ok") == {*LAWS}
    assert verdicts(outcomes, "skipped") == outcomes.keys() - LAWS
    assert "nothing is sent" in outcomes["flipped-bit"].detail
    assert "samples the same" in outcomes["learning-rate-0"].detail
    assert dtype in outcomes["agreement"].detail


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("method", ["full", "lora"])
def test_each_fault_that_applies_is_refused_and_the_engine_is_well_again(method: str) -> None:
    outcomes = with_vllm(method)
    assert verdicts(outcomes, "ok") == {*LAWS, *FAULTS[method], "healthy-sync"}
    assert verdicts(outcomes, "failed") == set()
    for name in FAULTS[method]:
        assert outcomes[name].detail.startswith("refused: the "), name
    says = {
        "dropped-tensor": "was not written" if method == "full" else "but zeros",
        "swapped-pair": "but the content of",
        "zeroed-tensor": "but zeros",
        "flipped-bit": "is not what was sent",
        "stale-weights": " more",
        "stale-adapter": " more",
        "skipped-sync": "its weights are stale",
        "wake-without-sync": "half awake, its weights not yet synced",
        "base-weight-changed": "_proj.weight is not what was sent",
        "adapter-counted-twice": "q_proj.weight is not what was sent",
    }
    for name in FAULTS[method]:
        assert says[name] in outcomes[name].detail, outcomes[name].detail


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("method", ["full", "lora"])
def test_without_the_proof_every_fault_goes_unnoticed_and_the_checks_say_so(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, proof in (
        ("weights", "check_written"),
        ("weights", "check_digests"),
        ("engine", "check_version"),
        ("engine", "check_probe"),
    ):
        gone: Callable[..., Any] = lambda *_: 0.0  # noqa: E731
        monkeypatch.setattr(f"roost.engines.vllm.{place}.{proof}", gone)
    outcomes = with_vllm(method)
    assert verdicts(outcomes, "failed") == FAULTS[method]
    assert all("not noticed" in outcomes[name].detail for name in FAULTS[method])


@pytest.mark.usefixtures("copied")
def test_an_engine_that_samples_after_a_refused_sync_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = VllmEngine.generate

    def generate(self: VllmEngine, *args: Any, **kwargs: Any) -> Iterator[Sample]:
        return honest(self, *args, **kwargs) if self.state is State.READY else iter(())

    monkeypatch.setattr(VllmEngine, "generate", generate)
    outcomes = with_vllm("full")
    sampled = {*ON_THE_WAY, "stale-weights"}
    assert verdicts(outcomes, "failed") == {*sampled, "wake-without-sync"}
    for name in sampled:
        assert "it sampled all the same" in outcomes[name].detail, outcomes[name].line()


@pytest.mark.usefixtures("copied")
def test_a_sync_that_fails_without_a_fault_is_no_healthy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither are the laws tried with such an engine."""

    def lost(self: CopiedPort, version: str) -> None:
        raise RuntimeError("the engine is gone")

    monkeypatch.setattr(CopiedPort, "finish_update", lost)
    outcomes = with_vllm("full")
    assert verdicts(outcomes, "ok") == set()
    assert outcomes["healthy-sync"].detail == "RuntimeError: the engine is gone"


def test_an_engine_that_computes_otherwise_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_samples(monkeypatch, lambda sample, call: sample.logprobs.__setitem__(0, -9.0))
    outcomes = check()
    assert "nats a token apart" in outcomes["agreement"].detail
    assert {"agreement", "learning-rate-0"} <= verdicts(outcomes, "failed")


def test_an_update_that_moves_a_weight_by_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = MasterOptimizer.step

    @torch.no_grad()
    def step(self: MasterOptimizer, learning_rate: float) -> dict[str, float]:
        for name, parameter in self._parameters.items():
            if name.endswith("layers.0.mlp.up_proj.weight"):
                parameter.view(-1)[0] += 1e-3
        return honest(self, learning_rate)

    monkeypatch.setattr(MasterOptimizer, "step", step)
    outcomes = check()
    assert verdicts(outcomes, "failed") == {"zero-advantage", "learning-rate-0"}
    for name in ("zero-advantage", "learning-rate-0"):
        assert "tensors moved, model.layers.0.mlp.up_proj.weight" in outcomes[name].detail


def test_a_step_without_a_gradient_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.training.trainer.Trainer._moves", lambda self, sample: False)
    outcomes = check()
    assert verdicts(outcomes, "failed") == {"learning-rate-0"}
    assert "the step shows nothing" in outcomes["learning-rate-0"].detail


def test_samples_that_change_although_no_weight_did_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls of ``generate``: agreement, zero advantage, twice the same samples, the step, and
    twice those after it."""
    spoil_samples(monkeypatch, lambda sample, call: call >= 5 and bend(sample, 1e-7))
    outcomes = check()
    assert verdicts(outcomes, "failed") == {"learning-rate-0"}
    assert outcomes["learning-rate-0"].detail == "8 of 8 samples changed"


def test_an_engine_that_does_not_repeat_itself_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil_samples(monkeypatch, lambda sample, call: bend(sample, call * 1e-7))
    outcomes = check()
    assert verdicts(outcomes, "failed") == set()
    assert "does not repeat its own to a bit" in outcomes["learning-rate-0"].detail


def bend(sample: Sample, by: float) -> None:
    sample.logprobs[0] += by


def spoil_samples(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Sample, int], object]) -> None:
    """Change each sample; ``spoil`` is told which call of ``generate`` it is from, from 0."""
    honest, calls = EmbeddedEngine.generate, iter(range(99))

    def generate(self: EmbeddedEngine, *args: Any, **kwargs: Any) -> Iterator[Sample]:
        call = next(calls)
        for sample in honest(self, *args, **kwargs):
            spoil(sample, call)
            yield sample

    monkeypatch.setattr(EmbeddedEngine, "generate", generate)


def test_whatever_a_check_raises_is_its_own_failure() -> None:
    def run(trial: Any) -> Found:
        raise ZeroDivisionError("by\n  - zero")

    outcome = outcome_of(Check("odd", run, lambda trial: None), trial=None)  # type: ignore[arg-type]
    assert outcome.as_dict() == {
        "name": "odd",
        "verdict": "failed",
        "detail": "ZeroDivisionError: by; zero",
    }
    assert outcome.line() == "FAILED   odd                    ZeroDivisionError: by; zero"
