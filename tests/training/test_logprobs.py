"""Log-probabilities and entropy in tiles against float64 ``log_softmax`` over whole logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roost.model.head import OutputHead
from roost.training import logprobs as module
from roost.training.logprobs import token_logprobs

WIDTH = 12
VOCABULARY = 37


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles in each direction, the last ones not full."""
    monkeypatch.setattr(module, "TOKEN_CHUNK", 4)
    monkeypatch.setattr(module, "VOCABULARY_TILE", 10)


def make_head(
    dtype: torch.dtype = torch.float32,
    bias: bool = False,
    vocabulary: int = VOCABULARY,
    **kind: Any,
) -> OutputHead:
    generator = torch.Generator().manual_seed(3)
    linear = nn.Linear(WIDTH, vocabulary, bias=bias)
    for parameter in linear.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return OutputHead(linear.to(dtype), **kind)


def make_hidden(tokens: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(tokens, WIDTH, generator=generator).to(dtype).requires_grad_()


def make_targets(tokens: int, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(7))


def reference(
    hidden: Tensor, head: OutputHead, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """The same from all logits at once, in float64."""
    logits = hidden.double() @ head.weight.double().T
    if head.bias is not None:
        logits = logits + head.bias.double()
    logits = logits * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    logs = (logits / temperature).log_softmax(-1)
    return logs[torch.arange(len(targets)), targets], -(logs.exp() * logs).sum(-1)


def gradients(logprobs: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Of a sum with a different weight a token, one of them 0 and some negative."""
    weight = torch.arange(len(logprobs), dtype=logprobs.dtype) - 2
    return list(torch.autograd.grad((logprobs * weight).sum(), inputs))


HEADS: list[dict[str, Any]] = [
    {},
    {"bias": True},
    {"softcap": 3.0},
    {"scale": 0.25},
    {"bias": True, "softcap": 2.0, "scale": 1.7},
]


@pytest.mark.parametrize("temperature", [1.0, 0.4, 1.9])
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
def test_forward_and_backward(
    kind: dict[str, Any], temperature: float, dtype: torch.dtype, rtol: float
) -> None:
    head, hidden, targets = make_head(dtype, **kind), make_hidden(11, dtype), make_targets(11)
    logprobs, entropy = token_logprobs(hidden, head, targets, temperature)
    expected, expected_entropy = reference(hidden, head, targets, temperature)
    close = {"rtol": rtol, "atol": rtol, "check_dtype": False}
    torch.testing.assert_close(logprobs, expected, **close)
    torch.testing.assert_close(entropy, expected_entropy, **close)
    inputs = [hidden, *head.linear.parameters()]
    pairs = zip(gradients(logprobs, inputs), gradients(expected, inputs), strict=True)
    for gradient, wanted in pairs:
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, wanted, **close)


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("vocabulary", [2, 10, 11, 20, 21])
def test_around_tile_borders(tokens: int, vocabulary: int) -> None:
    """Every id is a target somewhere: the first and last of a tile are not special."""
    head, hidden = make_head(vocabulary=vocabulary), make_hidden(tokens)
    for first in range(vocabulary):
        targets = torch.arange(first, first + tokens) % vocabulary
        logprobs, entropy = token_logprobs(hidden, head, targets)
        expected, expected_entropy = reference(hidden, head, targets, 1.0)
        close = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
        torch.testing.assert_close(logprobs, expected, **close)
        torch.testing.assert_close(entropy, expected_entropy, **close)
        inputs = [hidden, head.weight]
        for pair in zip(gradients(logprobs, inputs), gradients(expected, inputs), strict=True):
            torch.testing.assert_close(*pair, **close)


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden, targets = make_head(bias=True), make_hidden(11), make_targets(11)
    tiled = token_logprobs(hidden, head, targets)
    inputs = [hidden, *head.linear.parameters()]
    tiled_gradients = gradients(tiled[0], inputs)
    monkeypatch.setattr(module, "TOKEN_CHUNK", 1000)
    monkeypatch.setattr(module, "VOCABULARY_TILE", 1000)
    whole = token_logprobs(hidden, head, targets)
    torch.testing.assert_close(tiled, whole)
    torch.testing.assert_close(tiled_gradients, gradients(whole[0], inputs))


def test_no_tokens() -> None:
    """A pack whose completions are all empty."""
    head, hidden = make_head(), make_hidden(0)
    logprobs, entropy = token_logprobs(hidden, head, make_targets(0))
    assert logprobs.shape == entropy.shape == (0,)
    assert logprobs.dtype == torch.float32
    (to_weight,) = torch.autograd.grad(logprobs.sum(), [head.weight])
    assert torch.count_nonzero(to_weight) == 0


def test_a_frozen_head_gets_no_gradient_and_hidden_states_do() -> None:
    """As with an adapter."""
    head, hidden, targets = make_head(bias=True), make_hidden(11), make_targets(11)
    head.linear.requires_grad_(False)
    logprobs, _ = token_logprobs(hidden, head, targets)
    (gradient,) = gradients(logprobs, [hidden])
    expected, _ = reference(hidden, head, targets, 1.0)
    torch.testing.assert_close(gradient, gradients(expected, [hidden])[0], rtol=1e-5, atol=1e-5)
    logprobs, _ = token_logprobs(hidden, head, targets)
    logprobs.sum().backward()
    assert all(parameter.grad is None for parameter in head.linear.parameters())


def test_hidden_states_without_gradient() -> None:
    head, hidden, targets = make_head(), make_hidden(6).detach(), make_targets(6)
    logprobs, _ = token_logprobs(hidden, head, targets)
    expected, _ = reference(hidden, head, targets, 1.0)
    (one,), (other,) = gradients(logprobs, [head.weight]), gradients(expected, [head.weight])
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_entropy_is_a_measurement_without_gradient() -> None:
    _, entropy = token_logprobs(make_hidden(3), make_head(), make_targets(3))
    assert not entropy.requires_grad


def test_large_logits_stay_finite() -> None:
    """Logits of several hundred overflow a plain exponential, and far targets underflow it."""
    head, hidden = make_head(scale=80.0), make_hidden(11)
    targets = make_targets(11)
    logprobs, entropy = token_logprobs(hidden, head, targets)
    expected, expected_entropy = reference(hidden, head, targets, 1.0)
    assert float(expected.min().detach()) < -300
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-3, check_dtype=False)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-3, atol=1e-3, check_dtype=False)
    assert torch.isfinite(gradients(logprobs, [hidden])[0]).all()


def test_one_choice_and_equal_choices() -> None:
    """Entropy of a certain token is 0; of n equal ones log n."""
    head, hidden = make_head(vocabulary=16), make_hidden(3)
    with torch.no_grad():
        head.weight.zero_()
    logprobs, entropy = token_logprobs(hidden, head, torch.tensor([0, 9, 15]))
    torch.testing.assert_close(logprobs, torch.full((3,), -math.log(16)))
    torch.testing.assert_close(entropy, torch.full((3,), math.log(16)))
    single = make_head(vocabulary=1)
    logprobs, entropy = token_logprobs(hidden, single, torch.zeros(3, dtype=torch.int64))
    torch.testing.assert_close(logprobs, torch.zeros(3))
    torch.testing.assert_close(entropy, torch.zeros(3))


@pytest.mark.parametrize("kind", HEADS)
def test_bfloat16_scores_the_logits_that_the_engine_samples_from(kind: dict[str, Any]) -> None:
    """The product is rounded once, as ``OutputHead.logits`` rounds it; all else is float32."""
    head, hidden = make_head(torch.bfloat16, **kind), make_hidden(11, torch.bfloat16)
    targets = make_targets(11)
    logprobs, entropy = token_logprobs(hidden, head, targets, 0.8)
    assert logprobs.dtype == entropy.dtype == torch.float32
    logs = (head.logits(hidden).double() / 0.8).log_softmax(-1)
    engine = logs[torch.arange(11), targets]
    torch.testing.assert_close(logprobs, engine, rtol=1e-5, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("kind", HEADS)
def test_bfloat16_gradients_are_near_the_float64_ones(kind: dict[str, Any]) -> None:
    head, hidden = make_head(torch.bfloat16, **kind), make_hidden(11, torch.bfloat16)
    targets = make_targets(11)
    inputs = [hidden, *head.linear.parameters()]
    found = gradients(token_logprobs(hidden, head, targets)[0], inputs)
    wanted = gradients(reference(hidden, head, targets, 1.0)[0], inputs)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.bfloat16
        error = (one.double() - other.double()).norm() / other.double().norm()
        assert float(error) < 0.02


def test_many_tokens_of_one_word_add_up_in_bfloat16() -> None:
    """Two thousand gradients of one weight row, of which a bfloat16 sum would lose most."""
    head = make_head(torch.bfloat16, vocabulary=20, bias=True)
    hidden = torch.ones(2000, WIDTH, dtype=torch.bfloat16)
    targets = torch.full((2000,), 13)
    inputs = list(head.linear.parameters())
    found = torch.autograd.grad(token_logprobs(hidden, head, targets)[0].sum(), inputs)
    wanted = torch.autograd.grad(reference(hidden, head, targets, 1.0)[0].sum(), inputs)
    for one, other in zip(found, wanted, strict=True):
        error = (one.double() - other.double()).norm() / other.double().norm()
        assert float(error) < 0.01


def test_the_tied_head_gathers_gradient_beside_the_embedding() -> None:
    """One parameter, two uses: their gradients add."""
    embedding = nn.Embedding(VOCABULARY, WIDTH)
    linear = nn.Linear(WIDTH, VOCABULARY, bias=False)
    linear.weight = embedding.weight
    ids, targets = make_targets(9), make_targets(9).flip(0)
    found = token_logprobs(torch.tanh(embedding(ids)), OutputHead(linear), targets)[0]
    wanted, _ = reference(torch.tanh(embedding(ids)), OutputHead(linear), targets, 1.0)
    pair = [gradients(logprobs, [embedding.weight])[0] for logprobs in (found, wanted)]
    torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-5)
