"""Law 3: with an unchanged policy engine and trainer score the same tokens alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from roost.config import ModelConfig
from roost.engines.embedded import EmbeddedEngine, stop_token_ids
from roost.engines.protocol import SamplingParams
from roost.model.loading import load_model_config, load_module, load_tokenizer
from roost.model.policy import Policy
from roost.model.source import find_model
from roost.samples import Group, Prompt
from roost.training.batch import TrainBatch
from roost.training.trainer import Trainer
from support.small_models import ARCHITECTURES, build, with_adapter
from support.trainers import make_trainer

PROMPTS = [
    Prompt(0, (5, 9, 33, 7, 21, 8, 60, 11, 4), "a"),
    Prompt(1, (17,), "b"),
    Prompt(2, (3, 80, 12), "c"),
]


def differences(trainer: Trainer, sampling: SamplingParams, prompts: list[Prompt]) -> torch.Tensor:
    """Per token, |trainer's log-probability - engine's|."""
    policy = trainer.policy
    engine = EmbeddedEngine(policy, None, cache_bytes=2**26)
    groups = {prompt.id: Group(prompt, []) for prompt in prompts}
    for sample in engine.generate(prompts, 3, sampling, seed=1, step=0):
        sample.reward = 1.0
        groups[sample.prompt_id].samples.append(sample)
    batch = TrainBatch.of(list(groups.values()), trainer.config)
    scored = torch.cat(trainer.logprobs(policy, batch))
    engine_side = [p for sample in batch.samples for p in sample.sample.full_logprobs]
    return (scored - torch.tensor(engine_side)).abs()


def rollout(temperature: float) -> dict[str, object]:
    return {"max_completion_tokens": 12, "temperature": temperature}


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_alike_in_float32(architecture: str, temperature: float) -> None:
    trainer = make_trainer(build(architecture), rollout=rollout(temperature))
    sampling = SamplingParams(12, temperature=temperature)
    assert float(differences(trainer, sampling, PROMPTS).max()) < 1e-4


@pytest.mark.parametrize(
    "truncation", [{"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1}, {"top_p": 0.9, "top_k": 20}]
)
def test_alike_with_truncation(truncation: dict[str, float]) -> None:
    """The engine samples from the kept tokens; the full distribution is what is compared."""
    trainer = make_trainer(build("llama"), rollout=rollout(1.0))
    sampling = SamplingParams(12, **truncation)  # type: ignore[arg-type]
    assert float(differences(trainer, sampling, PROMPTS).max()) < 1e-4


def test_alike_with_an_adapter_on_and_off() -> None:
    trainer = make_trainer(
        with_adapter(build("llama")), rollout=rollout(1.0), train={"method": "lora"}
    )
    sampling = SamplingParams(12)
    assert float(differences(trainer, sampling, PROMPTS).max()) < 1e-4
    with trainer.policy.reference():
        assert float(differences(trainer, sampling, PROMPTS).max()) < 1e-4


def test_alike_after_an_update() -> None:
    """The engine reads the weights that the trainer wrote: there is no other copy."""
    from support.groups import random_groups

    trainer = make_trainer(build("qwen2"), rollout=rollout(1.0), train={"learning_rate": 1e-2})
    for _ in range(3):
        trainer.update(random_groups([4, 6], [[5, 3, 8], [2, 7, 4]]))
    assert trainer.policy.version == 3
    assert float(differences(trainer, SamplingParams(12), PROMPTS).max()) < 1e-4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_random_models_alike_in_bfloat16(architecture: str) -> None:
    trainer = make_trainer(build(architecture, dtype=torch.bfloat16), rollout=rollout(1.0))
    assert float(differences(trainer, SamplingParams(40), PROMPTS).mean()) < 0.02


def test_alike_in_bfloat16() -> None:
    """On the shipped model."""
    source = find_model(ModelConfig())
    module = load_module(source, load_model_config(source), torch.bfloat16, torch.device("cpu"))
    tokenizer = load_tokenizer(source)
    trainer = make_trainer(module, rollout=rollout(1.0))
    stop = stop_token_ids(Policy(module), tokenizer)
    prompts = []
    for number in range(8):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"{number}7+{number + 1}4="}],
            tokenize=False,
            add_generation_prompt=True,
        )
        prompts.append(Prompt(number, tuple(tokenizer(text)["input_ids"]), text))
    found = differences(trainer, SamplingParams(12, stop_token_ids=stop), prompts)
    assert float(found.mean()) < 0.02


def test_the_measured_difference_is_a_metric(tmp_path: Path) -> None:
    trainer = make_trainer(build("llama"), rollout=rollout(1.0))
    from support.groups import random_groups

    groups = random_groups([4], [[3, 5]])
    metrics = trainer.update(groups)
    # The groups claim -1.0 a token, which the trainer does not find.
    assert metrics["sampling/logp_difference_mean"] > 0.1
    assert metrics["sampling/logp_difference_max"] >= metrics["sampling/logp_difference_mean"]
