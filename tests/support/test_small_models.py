"""The small models are usable: deterministic, finite, and far from uniform."""

from __future__ import annotations

import pytest
import torch

from support.small_models import ARCHITECTURES, build, eager_copy, reference_logits, with_adapter

TOKENS = [1, 5, 9, 33, 70, 12, 4, 88, 15, 61, 7, 29]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_are_deterministic_and_lively(architecture: str) -> None:
    logits = reference_logits(eager_copy(build(architecture)), TOKENS)
    again = reference_logits(eager_copy(build(architecture)), TOKENS)
    assert torch.equal(logits, again)
    assert torch.isfinite(logits).all()
    assert 0.5 < float(logits.std()) < 20.0
    assert len(set(logits.argmax(-1).tolist())) > 3


def test_adapter_changes_the_model() -> None:
    plain = reference_logits(eager_copy(build("llama")), TOKENS)
    wrapped = with_adapter(build("llama"))
    wrapped.get_base_model().set_attn_implementation("eager")
    adapted = reference_logits(wrapped, TOKENS)
    assert float((plain - adapted).abs().max()) > 0.1
