"""Each fault of an engine, and what is said of it: on numbers, and on the model that ships."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from roost.algorithm.mismatch import Mismatch
from roost.config import ModelConfig
from roost.engines.embedded import EmbeddedEngine, stop_token_ids
from roost.engines.protocol import SamplingParams
from roost.model.loading import load_model_config, load_module, load_tokenizer
from roost.model.policy import Policy
from roost.model.source import find_model
from roost.run.agreement import LIMITS
from roost.run.diagnosis import CAUSES, diagnose, likeliest
from roost.samples import Group, Prompt, Sample
from support import engine_faults as faults
from support.trainers import make_trainer

LIMIT = LIMITS[torch.float32]
ROUGH = LIMITS[torch.bfloat16]
SPREADS = {"mixed": (0.5, 12.0), "certain": (3.0, 8.0), "flat": (0.3, 3.0)}
by_spread = pytest.mark.parametrize("spread", list(SPREADS))


def cause_of(spread: str, engine: faults.Engine, limit: float = LIMIT) -> str:
    found = faults.mismatch(*faults.sampled(faults.logits(*SPREADS[spread]), engine))
    assert found.mean > limit
    return likeliest(found, limit).name


@by_spread
@pytest.mark.parametrize("temperature", [0.5, 0.7, 0.9, 1.2, 1.5, 2.0])
def test_temperature(temperature: float, spread: str) -> None:
    assert cause_of(spread, faults.at_temperature(temperature)) == "another temperature"


@by_spread
@pytest.mark.parametrize(
    "engine", [faults.top_p(0.8), faults.top_p(0.95), faults.top_k(5), faults.top_k(1)]
)
def test_truncation(engine: faults.Engine, spread: str) -> None:
    assert cause_of(spread, engine) == "sampler settings that truncate"


@by_spread
@pytest.mark.parametrize(
    "engine", [faults.unrelated_weights, *map(faults.moved_weights, (0.3, 0.5, 1.0, 2.0))]
)
def test_weights(engine: faults.Engine, spread: str) -> None:
    assert cause_of(spread, engine) == "wrong weights"


@by_spread
@pytest.mark.parametrize("times", [1.5, 2.5])
@pytest.mark.parametrize("limit", [LIMIT, ROUGH])
def test_kernels(times: float, limit: float, spread: str) -> None:
    """The distances of normal noise have a mean of 0.8 of its size."""
    assert cause_of(spread, faults.rounding(times * limit / 0.7), limit) == "kernels"


def other_tokens(share: float) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """An honest engine, some of whose tokens were replaced by ones that nobody would draw."""

    def spoil(trainer: Tensor, engine: Tensor) -> tuple[Tensor, Tensor]:
        replaced = torch.arange(len(trainer)) % round(1 / share) == 0
        return torch.where(replaced, trainer - 9.0, trainer), engine

    return spoil


@by_spread
@pytest.mark.parametrize("share", [0.005, 0.05, 0.2])
def test_retokenisation(share: float, spread: str) -> None:
    honest = faults.sampled(faults.logits(*SPREADS[spread]), faults.at_temperature(1.0))
    found = faults.mismatch(*other_tokens(share)(*honest))
    assert likeliest(found, LIMIT).name == "retokenisation"
    half = faults.mismatch(*other_tokens(0.5)(*honest))
    assert likeliest(half, LIMIT).name != "retokenisation"


def test_a_version_that_lags_comes_before_all_that_it_looks_like() -> None:
    scores = faults.logits(*SPREADS["mixed"])
    for engine in (faults.moved_weights(0.5), faults.at_temperature(0.5)):
        found = faults.mismatch(*faults.sampled(scores, engine), lag=2)
        assert "up to 2 versions before" in diagnose(found, LIMIT)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_numbers_that_are_none(value: float) -> None:
    found = faults.mismatch(torch.tensor([value, -1.0]), torch.tensor([-1.0, -1.0]))
    assert likeliest(found, LIMIT).name == "numbers that are not finite"


def test_every_cause_is_described() -> None:
    for cause in CAUSES:
        text = cause.describe(Mismatch(tokens=4.0, distance=2.0, lag=1.0))
        assert text.endswith(".")
        assert "nan" not in text.lower() or cause.name == "numbers that are not finite"


# On the model that ships.

SETTINGS = SamplingParams(12)


@pytest.fixture(scope="module")
def policy() -> Policy:
    source = find_model(ModelConfig())
    config = load_model_config(source)
    return Policy(load_module(source, config, torch.float32, torch.device("cpu")))


def prompts() -> Iterator[Prompt]:
    tokenizer = load_tokenizer(find_model(ModelConfig()))
    for number in range(8):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"{number}7+{number + 1}4="}],
            tokenize=False,
            add_generation_prompt=True,
        )
        yield Prompt(number, tuple(tokenizer(text)["input_ids"]), text)


def rollout(policy: Policy, sampling: SamplingParams) -> list[Group]:
    """Eight samples of each prompt, every other one rewarded."""
    groups = {prompt.id: Group(prompt, []) for prompt in prompts()}
    stop = stop_token_ids(policy, load_tokenizer(find_model(ModelConfig())))
    asked = [group.prompt for group in groups.values()]
    engine = EmbeddedEngine(policy, None, cache_bytes=2**26)
    params = replace(sampling, stop_token_ids=stop)
    for sample in engine.generate(asked, 8, params, seed=1, step=0):
        sample.reward, sample.advantage = 1.0, float(sample.index % 2) - 0.5
        groups[sample.prompt_id].samples.append(sample)
    return list(groups.values())


def found_by_the_trainer(policy: Policy, groups: list[Group], temperature: float = 1.0) -> str:
    trainer = make_trainer(
        policy.module,
        rollout={"temperature": temperature},
        train={"learning_rate": 0.0},
    )
    trainer.policy.version = policy.version
    metrics = trainer.update(groups)
    assert trainer.mismatch.mean == metrics["sampling/logp_difference_mean"] > LIMIT
    return likeliest(trainer.mismatch, LIMIT).name


def samples(groups: list[Group]) -> list[Sample]:
    return [sample for group in groups for sample in group.samples]


@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_an_engine_at_another_temperature(policy: Policy, temperature: float) -> None:
    groups = rollout(policy, replace(SETTINGS, temperature=temperature))
    assert found_by_the_trainer(policy, groups) == "another temperature"


def test_an_engine_that_does_not_say_what_it_cut_off(policy: Policy) -> None:
    groups = rollout(policy, replace(SETTINGS, temperature=1.3, top_k=3))
    for sample in samples(groups):
        sample.kept_mass_logs = [0.0] * len(sample.token_ids)
    assert found_by_the_trainer(policy, groups, 1.3) == "sampler settings that truncate"


def test_an_engine_with_other_weights(policy: Policy) -> None:
    weight = policy.base.get_input_embeddings().weight.data
    kept = weight.clone()
    weight.copy_(weight.roll(1, dims=0))
    groups = rollout(policy, SETTINGS)
    weight.copy_(kept)
    assert found_by_the_trainer(policy, groups) == "wrong weights"


def test_an_engine_that_rounds_more(policy: Policy) -> None:
    groups = rollout(policy, SETTINGS)
    generator = torch.Generator().manual_seed(0)
    for sample in samples(groups):
        noise = 0.02 * torch.randn(len(sample.logprobs), generator=generator)
        sample.logprobs = [p + float(n) for p, n in zip(sample.logprobs, noise, strict=True)]
    assert found_by_the_trainer(policy, groups) == "kernels"


def test_a_last_token_that_is_not_the_one_drawn(policy: Policy) -> None:
    """In a few completions; what follows a replaced token would be scored otherwise too."""
    groups = rollout(policy, SETTINGS)
    for group in groups[:3]:
        group.samples[0].token_ids[-1] = 0
    assert found_by_the_trainer(policy, groups) == "retokenisation"


def test_an_engine_that_missed_a_sync(policy: Policy) -> None:
    groups = rollout(policy, replace(SETTINGS, temperature=1.5))
    policy.version = 3
    for sample in samples(groups):
        sample.policy_versions = [2] * len(sample.token_ids)
    assert found_by_the_trainer(policy, groups) == "a stale version"
    policy.version = 0
