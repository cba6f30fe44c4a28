"""Law 3 with the real vLLM: both score the same tokens alike, at any temperature."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from vllm_support import TOKENIZER, make_engine, make_policy, move, needs_vllm, prompts, start

from roost.engines.embedded import stop_token_ids
from roost.engines.protocol import SamplingParams
from roost.model.policy import Policy
from roost.samples import FinishReason, Group, Sample
from roost.training.batch import TrainBatch
from support.trainers import make_trainer

pytestmark = [needs_vllm, pytest.mark.slow]


@pytest.fixture(scope="module", params=["full", "lora", "bfloat16", "bfloat16-lora"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Policy, Any]]:
    dtype = torch.bfloat16 if "bfloat16" in request.param else torch.float32
    lora = "lora" in request.param
    for port in start(dtype, lora=lora):
        yield make_policy(dtype, lora=lora), port


def sampling(policy: Policy, temperature: float = 1.0) -> SamplingParams:
    stop = stop_token_ids(policy, TOKENIZER)
    return SamplingParams(12, temperature=temperature, stop_token_ids=stop)


def rollout(policy: Policy, port: Any, temperature: float = 1.0) -> list[Group]:
    engine = make_engine(policy, port)
    engine.sync()
    groups = {prompt.id: Group(prompt, []) for prompt in prompts(6)}
    drawn = engine.generate(prompts(6), 4, sampling(policy, temperature), seed=1, step=0)
    for sample in drawn:
        sample.reward = 1.0
        groups[sample.prompt_id].samples.append(sample)
    return list(groups.values())


def differences(
    policy: Policy, groups: list[Group], temperature: float, *, adapter: bool = True
) -> torch.Tensor:
    method = "lora" if policy.is_adapter else "full"
    trainer = make_trainer(
        policy.module, rollout={"temperature": temperature}, train={"method": method}
    )
    batch = TrainBatch.of(groups, trainer.config)
    with nullcontext() if adapter else policy.reference():
        scored = torch.cat(trainer.logprobs(policy, batch))
    engine = [p for sample in batch.samples for p in sample.sample.full_logprobs]
    return (scored - torch.tensor(engine)).abs()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
def test_alike_before_and_after_an_update(temperature: float, pair: tuple[Policy, Any]) -> None:
    policy, port = pair
    for _ in range(2):
        found = differences(policy, rollout(policy, port, temperature), temperature)
        assert len(found) > 40
        if policy.dtype is torch.float32:
            assert float(found.max()) < 1e-4
        else:
            assert float(found.mean()) < 0.02
        move(policy, 0.002)


@pytest.mark.parametrize("pair", ["lora", "bfloat16-lora"], indirect=True)
def test_an_adapter_changes_what_is_sampled(pair: tuple[Policy, Any]) -> None:
    """It is not the base model that samples: without its adapter the trainer scores otherwise."""
    policy, port = pair
    groups = rollout(policy, port)
    on = float(differences(policy, groups, 1.0).mean())
    off = float(differences(policy, groups, 1.0, adapter=False).mean())
    assert off > max(0.02, 3 * on)


def test_samples_end_as_asked_and_repeat(pair: tuple[Policy, Any]) -> None:
    policy, port = pair
    first, again = ordered(rollout(policy, port)), ordered(rollout(policy, port))
    assert [s.token_ids for s in first] == [s.token_ids for s in again]
    assert len({tuple(s.token_ids) for s in first}) > 6, "each sample has a stream of its own"
    stop = stop_token_ids(policy, TOKENIZER)
    for sample in first:
        assert 1 <= len(sample.token_ids) <= 12
        ended = sample.token_ids[-1] in stop
        assert (sample.finish_reason is FinishReason.STOP) == ended
        assert not stop & set(sample.token_ids[:-1])
        assert sample.text == TOKENIZER.decode(sample.token_ids, skip_special_tokens=True)


def ordered(groups: list[Group]) -> list[Sample]:
    return sorted((s for g in groups for s in g.samples), key=lambda s: (s.prompt_id, s.index))


def test_greedy_is_the_likeliest_token(pair: tuple[Policy, Any]) -> None:
    """Against the trainer's own greedy choice, token by token, where rounding leaves no doubt."""
    policy, port = pair
    engine = make_engine(policy, port)
    engine.sync()
    greedy = list(engine.generate(prompts(3), 1, sampling(policy, 0.0), seed=0, step=0))
    assert len(greedy) == 3
    for sample in greedy:
        prompt = list(prompts(3)[sample.prompt_id].token_ids)
        ids = torch.tensor([prompt + sample.token_ids])
        policy.base.set_attn_implementation("eager")
        with torch.inference_mode():
            logits = policy.base(input_ids=ids, use_cache=False).logits[0].float()
        policy.base.set_attn_implementation("roost")
        rows = logits[len(prompt) - 1 : -1]
        top = rows.topk(2).values
        chosen = rows.gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]
        slack = 1e-3 if policy.dtype is torch.float32 else 0.2
        assert bool((top[:, 0] - chosen <= slack).all())
