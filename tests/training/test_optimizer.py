"""The optimizer against torch's plain AdamW in float32, the schedules against transformers'."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from roost.config import TrainConfig
from roost.errors import ConfigError, RoostError
from roost.training.optimizer import (
    MAX_NON_FINITE,
    MasterOptimizer,
    check_optimizer,
    learning_rate,
)

RATE = 1e-2


def make_parameters(dtype: torch.dtype, seed: int = 0) -> dict[str, nn.Parameter]:
    """A matrix, a stack of experts, a norm's vector."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (5, 4), "experts": (2, 3, 3), "norm": (6,)}
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
        for name, shape in shapes.items()
    }


def random_gradients(parameters: dict[str, nn.Parameter], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + seed)
    return {
        name: torch.randn(p.shape, generator=generator).to(p.dtype)
        for name, p in parameters.items()
    }


def backward(parameters: dict[str, nn.Parameter], gradients: dict[str, Tensor]) -> None:
    """Give the parameters these gradients the way a model's backward does."""
    loss = sum((p * gradients[name]).sum() for name, p in parameters.items())
    loss.backward()  # type: ignore[union-attr]


class Plain:
    """The reference: torch's loop over float32 copies, clipping written out."""

    def __init__(self, parameters: dict[str, nn.Parameter], config: TrainConfig) -> None:
        self.config = config
        self.weights = {n: nn.Parameter(p.detach().float().clone()) for n, p in parameters.items()}
        decayed = {"matrix": config.weight_decay, "experts": config.weight_decay, "norm": 0.0}
        self.optimizer = torch.optim.AdamW(
            [{"params": [w], "weight_decay": decayed[n]} for n, w in self.weights.items()],
            lr=RATE,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            foreach=False,
        )

    def step(self, gradients: dict[str, Tensor]) -> float:
        norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients.values()))
        limit = self.config.max_grad_norm
        factor = min(1.0, limit / norm) if limit else 1.0
        for name, weight in self.weights.items():
            weight.grad = gradients[name].float() * factor
        self.optimizer.step()
        return norm


SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_grad_norm": 0.0},
    {"weight_decay": 0.3},
    {"adam_beta1": 0.5, "adam_beta2": 0.9, "adam_epsilon": 1e-3, "weight_decay": 0.1},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_float32_is_plain_adamw(settings: dict[str, Any]) -> None:
    parameters, config = make_parameters(torch.float32), TrainConfig(**settings)
    plain = Plain(parameters, config)
    optimizer = MasterOptimizer(parameters, config)
    for number in range(5):
        optimizer.zero_grad()
        gradients = random_gradients(parameters, number)
        backward(parameters, gradients)
        metrics = optimizer.step(RATE)
        assert metrics["grad_norm"] == pytest.approx(plain.step(gradients), rel=1e-5)
        assert "weights/changed" not in metrics
    for name, weight in plain.weights.items():
        torch.testing.assert_close(parameters[name], weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS)
def test_bfloat16_weights_are_the_rounded_float32_ones(settings: dict[str, Any]) -> None:
    parameters, config = make_parameters(torch.bfloat16), TrainConfig(**settings)
    plain = Plain(parameters, config)
    optimizer = MasterOptimizer(parameters, config)
    for number in range(5):
        optimizer.zero_grad()
        gradients = random_gradients(parameters, number)
        backward(parameters, gradients)
        optimizer.step(RATE)
        plain.step(gradients)
    state = optimizer.state_dict()
    for name, weight in plain.weights.items():
        master = state[f"master/{name}"]
        torch.testing.assert_close(master, weight.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(parameters[name].detach(), master.bfloat16())


def test_updates_too_small_for_bfloat16_add_up() -> None:
    """A weight of 1 moves by 1e-5 a step; its bfloat16 neighbour below is 0.004 away."""
    weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = MasterOptimizer({"w": weight}, TrainConfig())
    changed = []
    for _ in range(300):
        optimizer.zero_grad()
        backward({"w": weight}, {"w": torch.ones(4, dtype=torch.bfloat16)})
        changed.append(optimizer.step(1e-5)["weights/changed"])
    assert changed[0] == 0.0
    assert changed.count(1.0) == 1
    assert float(weight.detach()[0]) == 1.0 - 2.0**-8
    assert float(optimizer.state_dict()["master/w"][0]) == pytest.approx(1.0 - 300e-5, rel=1e-5)


def test_share_of_changed_weights() -> None:
    weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer = MasterOptimizer({"w": weight}, TrainConfig())
    backward({"w": weight}, {"w": torch.tensor([1.0, -1, 0, 0, 0, 0, 0, 0]).bfloat16()})
    assert optimizer.step(0.1)["weights/changed"] == 2 / 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_many_backwards_add_up_in_float32(dtype: torch.dtype) -> None:
    """In bfloat16 256 + 1 is 256, so a sum there would stop."""
    weight = nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = MasterOptimizer({"w": weight}, TrainConfig())
    for value in [256.0] + [1.0] * 40:
        backward({"w": weight}, {"w": torch.full((3,), value, dtype=dtype)})
    [gradient] = optimizer.gradients().values()
    assert gradient.dtype == torch.float32
    assert gradient.tolist() == [296.0] * 3
    optimizer.zero_grad()
    assert gradient.tolist() == [0.0] * 3


def test_no_second_gradient_is_kept() -> None:
    parameters = make_parameters(torch.bfloat16)
    optimizer = MasterOptimizer(parameters, TrainConfig())
    backward(parameters, random_gradients(parameters, 0))
    assert all(parameter.grad is None for parameter in parameters.values())
    assert len(optimizer.gradients()) == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("limit", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_not_finite_changes_nothing(
    bad: float, limit: float, dtype: torch.dtype
) -> None:
    parameters = make_parameters(dtype)
    optimizer = MasterOptimizer(parameters, TrainConfig(max_grad_norm=limit))
    backward(parameters, random_gradients(parameters, 0))
    optimizer.step(RATE)
    before = {name: t.clone() for name, t in optimizer.state_dict().items()}
    weights = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer.zero_grad()
    gradients = random_gradients(parameters, 1)
    gradients["norm"][2] = bad
    backward(parameters, gradients)
    assert not math.isfinite(optimizer.step(RATE)["grad_norm"])
    after = optimizer.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(torch.equal(parameters[name].detach(), w) for name, w in weights.items())


def one_step(optimizer: MasterOptimizer, weight: nn.Parameter, value: float) -> None:
    optimizer.zero_grad()
    backward({"w": weight}, {"w": torch.full((2,), value)})
    optimizer.step(RATE)


def test_three_bad_gradients_in_a_row_end_the_run() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = MasterOptimizer({"w": weight}, TrainConfig())
    for value in (math.nan, math.inf, 1.0, math.nan, math.nan):
        one_step(optimizer, weight, value)
    assert optimizer.non_finite == MAX_NON_FINITE - 1
    with pytest.raises(RoostError, match=r"3 updates in a row.*a new run with a lower"):
        one_step(optimizer, weight, math.nan)


def test_a_bad_gradient_does_not_spoil_the_next() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = MasterOptimizer({"w": weight}, TrainConfig())
    one_step(optimizer, weight, math.nan)
    one_step(optimizer, weight, 1.0)
    # Adam's first step moves by the learning rate.
    torch.testing.assert_close(weight.detach(), torch.full((2,), 1.0 - RATE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_goes_around(dtype: torch.dtype) -> None:
    """Three steps, the state moved into a new optimizer over other weights, three more."""
    config = TrainConfig(weight_decay=0.1)

    def advance(optimizer: MasterOptimizer, parameters: Any, steps: range) -> None:
        for number in steps:
            optimizer.zero_grad()
            backward(parameters, random_gradients(parameters, number))
            optimizer.step(RATE / (1 + number))

    parameters = make_parameters(dtype)
    optimizer = MasterOptimizer(parameters, config)
    advance(optimizer, parameters, range(3))
    saved = {name: tensor.clone() for name, tensor in optimizer.state_dict().items()}
    advance(optimizer, parameters, range(3, 6))

    other = make_parameters(dtype, seed=8)
    resumed = MasterOptimizer(other, config)
    resumed.load_state_dict(saved)
    advance(resumed, other, range(3, 6))
    for name, parameter in parameters.items():
        assert torch.equal(other[name].detach(), parameter.detach())
    end, resumed_end = optimizer.state_dict(), resumed.state_dict()
    assert end.keys() == resumed_end.keys()
    assert all(torch.equal(end[name], resumed_end[name]) for name in end)


def test_loading_sets_the_working_weights_at_once() -> None:
    parameters, other = make_parameters(torch.bfloat16), make_parameters(torch.bfloat16, seed=8)
    resumed = MasterOptimizer(other, TrainConfig())
    resumed.load_state_dict(MasterOptimizer(parameters, TrainConfig()).state_dict())
    for name, parameter in parameters.items():
        assert torch.equal(other[name].detach(), parameter.detach())


def test_a_loaded_state_is_a_copy() -> None:
    """Training on must not change the tensors that it was given."""
    parameters = make_parameters(torch.float32)
    optimizer = MasterOptimizer(parameters, TrainConfig())
    backward(parameters, random_gradients(parameters, 0))
    optimizer.step(RATE)
    saved = {name: tensor.clone() for name, tensor in optimizer.state_dict().items()}
    kept = {name: tensor.clone() for name, tensor in saved.items()}
    other = make_parameters(torch.float32)
    resumed = MasterOptimizer(other, TrainConfig())
    resumed.load_state_dict(saved)
    backward(other, random_gradients(other, 1))
    resumed.step(RATE)
    assert all(torch.equal(saved[name], kept[name]) for name in kept)


@pytest.mark.skipif(
    find_spec("bitsandbytes") is not None, reason="tests what is said where it is missing"
)
def test_eight_bit_moments_need_bitsandbytes() -> None:
    config = TrainConfig(optimizer="adamw_8bit")
    with pytest.raises(ConfigError, match=r"adamw_8bit.*pip install 'roost\[bitsandbytes\]'"):
        check_optimizer(config, torch.device("cpu"))


def eight_bit_steps(
    optimizer: MasterOptimizer, parameters: dict[str, nn.Parameter], seeds: range
) -> None:
    for seed in seeds:
        optimizer.zero_grad()
        backward(parameters, random_gradients(parameters, seed))
        optimizer.step(RATE)


def wide_parameters() -> dict[str, nn.Parameter]:
    """A matrix of enough weights for bitsandbytes to keep its moments in 8 bits, and a norm."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"matrix": (96, 64), "norm": (6,)}
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator).bfloat16())
        for name, shape in shapes.items()
    }


def test_eight_bit_moments_take_nearly_the_same_steps_and_go_on_where_they_were() -> None:
    pytest.importorskip("bitsandbytes", reason="runs where roost[bitsandbytes] is installed")
    eight_bit = TrainConfig(optimizer="adamw_8bit", learning_rate=RATE, weight_decay=0.1)
    parameters, plain = wide_parameters(), wide_parameters()
    optimizer = MasterOptimizer(parameters, eight_bit)
    exact = MasterOptimizer(plain, eight_bit.model_copy(update={"optimizer": "adamw"}))
    eight_bit_steps(optimizer, parameters, range(3))
    eight_bit_steps(exact, plain, range(3))
    state, start = optimizer.state_dict(), wide_parameters()
    assert state["state1/matrix"].dtype == torch.uint8
    for name in parameters:
        mine, theirs = (s[f"master/{name}"] - start[name] for s in (state, exact.state_dict()))
        assert torch.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0) > 0.99

    resumed = wide_parameters()
    again = MasterOptimizer(resumed, eight_bit)
    again.load_state_dict({name: value.clone() for name, value in state.items()})
    eight_bit_steps(optimizer, parameters, range(3, 6))
    eight_bit_steps(again, resumed, range(3, 6))
    assert again.state_dict().keys() == optimizer.state_dict().keys()
    for name, value in optimizer.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


SCHEDULES: dict[str, Any] = {
    "constant": lambda o, warmup, steps: get_constant_schedule_with_warmup(o, warmup),
    "linear": get_linear_schedule_with_warmup,
    "cosine": get_cosine_schedule_with_warmup,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 10), (1, 10), (4, 10), (10, 10), (3, 4), (0, 1)])
def test_schedules_are_transformers_without_its_step_of_rate_0(
    schedule: str, warmup: int, steps: int
) -> None:
    """With warm-up transformers' first step has rate 0 and trains nothing: ours leaves it out."""
    config = TrainConfig(learning_rate=0.5, schedule=schedule, warmup_steps=warmup, steps=steps)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = SCHEDULES[schedule](optimizer, warmup + 1, steps + 1)
    expected = [0.5 * theirs.lr_lambdas[0](step + 1) for step in range(steps)]
    rates = [learning_rate(step, 0.5, config) for step in range(steps)]
    assert rates == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 7), (3, 7), (6, 7)])
def test_every_step_trains_and_none_exceeds_the_peak(
    schedule: str, warmup: int, steps: int
) -> None:
    config = TrainConfig(learning_rate=0.5, schedule=schedule, warmup_steps=warmup, steps=steps)
    rates = [learning_rate(step, 0.5, config) for step in range(steps)]
    assert min(rates) > 0
    assert max(rates) == rates[warmup] == 0.5
    assert rates[: warmup + 1] == sorted(rates[: warmup + 1])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
