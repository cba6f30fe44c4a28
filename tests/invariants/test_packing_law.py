"""Law 2: a packed, prefix-shared forward and backward equals the plain one, sample by sample."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roost.training.batch import TrainBatch
from support.groups import random_groups
from support.plain_grpo import plain_gradient, plain_logprobs
from support.small_models import ARCHITECTURES, build, eager_copy, with_adapter
from support.trainers import gradient, make_trainer, relative_error

EDGES = ([1, 5, 12], [[1, 2, 9], [7, 0, 1], [15, 1, 3]])
"""Prompts of one token and more; completions of one token, none, and many."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_and_gradients_equal_the_plain_ones(architecture: str) -> None:
    model = build(architecture)
    reference = eager_copy(model)
    groups = random_groups(*EDGES)
    trainer = make_trainer(model)
    batch = TrainBatch.of(groups, trainer.config)
    for sample, packed in zip(batch.samples, trainer.logprobs(trainer.policy, batch), strict=True):
        prompt = groups[sample.group].prompt.token_ids
        with torch.no_grad():
            plain = plain_logprobs(reference, prompt, sample.sample.token_ids)
        torch.testing.assert_close(packed, plain, rtol=1e-5, atol=1e-5)
    assert relative_error(plain_gradient(reference, groups), gradient(trainer, groups)) < 1e-5


def test_with_an_adapter() -> None:
    model = with_adapter(build("llama"))
    reference = with_adapter(build("llama"))
    reference.get_base_model().set_attn_implementation("eager")
    groups = random_groups(*EDGES)
    packed = gradient(make_trainer(model, train={"method": "lora"}), groups)
    assert packed
    assert relative_error(plain_gradient(reference, groups), packed) < 1e-5


lengths = st.lists(st.integers(0, 11), min_size=2, max_size=4)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 13), lengths), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(1, 60),
)
@example([(1, [0, 1])], 0, 1)  # a token that sees itself alone: its query and key have gradient 0
def test_any_groups_and_any_budget(
    shape: list[tuple[int, list[int]]], seed: int, budget: int
) -> None:
    groups = random_groups([p for p, _ in shape], [c for _, c in shape], seed)
    if not any(s.token_ids for g in groups for s in g.samples):
        return
    model = build("qwen3")
    plain = plain_gradient(eager_copy(model), groups)
    assert relative_error(plain, gradient(make_trainer(model, budget), groups)) < 2e-5


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "mistral"])
def test_a_divided_group_computes_its_prompt_once(architecture: str, checkpointing: bool) -> None:
    model = build(architecture)
    plain = plain_gradient(eager_copy(model), groups := random_groups([23], [[9, 0, 14, 1, 12]]))
    trainer = make_trainer(
        model, 40, train={"learning_rate": 1e-3, "gradient_checkpointing": checkpointing}
    )
    batch = TrainBatch.of(groups, trainer.config)
    assert len(batch.packs(batch.samples, 40)) == 3
    sums: defaultdict[str, float] = defaultdict(float)
    trainer.optimizer.zero_grad()
    trainer.accumulate(batch, batch.parts[0], sums)
    assert sums["computed"] == 23 + 8 + 13 + 11
    assert relative_error(plain, trainer.optimizer.gradients()) < 1e-5


def test_a_divided_group_with_an_adapter() -> None:
    groups = random_groups([23], [[9, 0, 14, 1, 12]])
    reference = with_adapter(build("llama"))
    reference.get_base_model().set_attn_implementation("eager")
    packed = gradient(make_trainer(with_adapter(build("llama")), 40), groups)
    assert relative_error(plain_gradient(reference, groups), packed) < 1e-5
