"""Every tensor of the engine is made where the model is: a GPU would refuse to mix devices."""

from __future__ import annotations

import pytest
import torch
from engine_support import make_prompts

from roost.engines.embedded import EmbeddedEngine
from roost.engines.embedded.decoders import Decoding
from roost.engines.embedded.kernels import Choice
from roost.engines.protocol import SamplingParams
from roost.model.policy import Policy
from roost.samples import Sample
from roost.sync.trainer_side import score
from support.another_device import DEVICE, another_device
from support.small_models import build


def generated(architecture: str, fixed: bool, sampling: SamplingParams) -> list[Sample]:
    model = build(architecture, dtype=torch.bfloat16)
    with another_device():
        policy = Policy(model.to(DEVICE))
        decoding = Decoding(fixed, Choice(None, "by definition"), recorded=False)
        engine = EmbeddedEngine(policy, None, cache_bytes=1 << 26, decoding=decoding)
        return list(engine.generate(make_prompts((4, 9)), 3, sampling, seed=0, step=0))


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_generation(architecture: str, fixed: bool) -> None:
    samples = generated(architecture, fixed, SamplingParams(5))
    assert [len(sample.token_ids) for sample in samples] == [5] * 6


@pytest.mark.parametrize(
    "sampling", [SamplingParams(3, temperature=0.0), SamplingParams(3, top_k=5, min_p=0.1)]
)
def test_sampling(sampling: SamplingParams) -> None:
    assert len(generated("llama", True, sampling)) == 6


def test_the_probe_of_a_sync() -> None:
    model = build("qwen3", dtype=torch.bfloat16)
    with another_device():
        assert len(score(Policy(model.to(DEVICE)), [3, 4, 5, 6])) == 3


def test_mixing_would_be_noticed() -> None:
    with another_device(), pytest.raises(Exception, match="to be on the same device"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
